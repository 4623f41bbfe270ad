"""Vectors of bytes are looked up in registers: a table of 256 bytes is four of AVX-512's.

    table[i0], ..., table[i15]   ->   two `vpermi2b`, of the lower and of the upper half, and a choice by the top bit

LLVM has no such pattern: it takes every index out of its vector and loads one byte for each.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.llvm_text import inside_root
from subtune.tir.shuffle import lanes_of

FEATURE = "avx512vbmi"
"""The processor feature, in LLVM's spelling, without which lookups stay as they are."""
_ENTRIES = 256
_LANES = (8, 16, 32, 64)

_PERMUTE = "declare <64 x i8> @llvm.x86.avx512.vpermi2var.qi.512(<64 x i8>, <64 x i8>, <64 x i8>)"
_IR = """
define <{lanes} x i8> @subtune_lookup_{lanes}(ptr readonly %table, <{lanes} x i8> %index) alwaysinline {{
  %p1 = getelementptr i8, ptr %table, i64 64
  %p2 = getelementptr i8, ptr %table, i64 128
  %p3 = getelementptr i8, ptr %table, i64 192
  %t0 = load <64 x i8>, ptr %table, align 1
  %t1 = load <64 x i8>, ptr %p1, align 1
  %t2 = load <64 x i8>, ptr %p2, align 1
  %t3 = load <64 x i8>, ptr %p3, align 1
  %i = shufflevector <{lanes} x i8> %index, <{lanes} x i8> poison, <64 x i32> <{widened}>
  %low = call <64 x i8> @llvm.x86.avx512.vpermi2var.qi.512(<64 x i8> %t0, <64 x i8> %i, <64 x i8> %t1)
  %high = call <64 x i8> @llvm.x86.avx512.vpermi2var.qi.512(<64 x i8> %t2, <64 x i8> %i, <64 x i8> %t3)
  %upper = icmp slt <64 x i8> %i, zeroinitializer
  %all = select <64 x i1> %upper, <64 x i8> %high, <64 x i8> %low
  %found = shufflevector <64 x i8> %all, <64 x i8> poison, <{lanes} x i32> <{narrowed}>
  ret <{lanes} x i8> %found
}}
"""


def lookups_in_registers() -> Any:
    """The pass, on vectorised code whose buffers are flat."""

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        used: set[int] = set()

        def looked_up(load: Any) -> Any:
            if not _is_lookup(load):
                return load
            index = load.indices[0]
            used.add(lanes_of(index))
            first = tirx.BufferLoad(load.source, [tirx.const(0, "int32")])
            name, narrow = f"subtune_lookup_{lanes_of(index)}", f"uint8x{lanes_of(index)}"
            return tirx.call_pure_extern(
                f"{load.source.dtype}x{lanes_of(index)}", name, tirx.address_of(first), index.astype(narrow)
            )

        if not any(_is_table(param) for param in func.params) or not _has_permutations(func):
            return func
        body = tvm_ffi.structural_map(func.body, (ir.TensorLoad, looked_up))
        if not used:
            return func
        return func.with_body(inside_root(body, _PERMUTE + "".join(_function(lanes) for lanes in sorted(used))))

    return run


def _function(lanes: int) -> str:
    widened = (f"i32 {lane}" if lane < lanes else "i32 poison" for lane in range(64))
    narrowed = (f"i32 {lane}" for lane in range(lanes))
    return _IR.format(lanes=lanes, widened=", ".join(widened), narrowed=", ".join(narrowed))


def _is_table(buffer: Any) -> bool:
    if not isinstance(buffer.ty, tirx.BufferType) or str(buffer.dtype) not in ("uint8", "int8"):
        return False
    return len(buffer.shape) == 1 and isinstance(buffer.shape[0], tirx.IntImm) and int(buffer.shape[0]) == _ENTRIES


def _is_lookup(load: Any) -> bool:
    """Whether each lane reads an entry of its own of a table."""
    if len(load.indices) != 1 or isinstance(load.indices[0], tirx.Ramp | tirx.Broadcast):
        return False
    return lanes_of(load.indices[0]) in _LANES and _is_table(load.source)


def _has_permutations(func: PrimFunc) -> bool:
    target = func.attrs.get("target") if func.attrs else None
    features = tvm.get_global_func("target.llvm_get_cpu_features")
    return target is not None and FEATURE in {str(feature) for feature in features(target)}
