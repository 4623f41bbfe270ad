"""Tensor-core instructions as TVM's tensor intrinsics: ldmatrix, mma.sync, the store of sums, for every dtype alike.

One warp multiplies 16 x K by K x 16, K being 32 bytes of operands: 16 of float16 and bfloat16, 32 of bytes, 8 of tf32.
`ldmatrix` moves 8 x 8 matrices of 16 bits; seen in bytes its lanes hold the same for all these dtypes, so one formula
gives the fragments. Registered on first use: TVM's own registry costs seconds of every process that imports it.
Source: PTX ISA, "Warp-level matrix load instruction" and "Matrix fragments for mma".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from subtune.backends.cuda.building.fast_import import cheap_stack
from subtune.backends.cuda.lowering.called_mma import FLOAT8_TYPE, SPLIT_TYPE
from subtune.core.numerics import BYTES, FLOAT8
from subtune.core.workload import dtype_bits

LANES = 32
TILE = 16
_PTX = {
    "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "uint8", FLOAT8: FLOAT8_TYPE, "float32": "tf32",
}  # fmt: skip
_ACC_PTX = {"float32": "fp32", "int32": "int32"}


@dataclass(frozen=True, slots=True)
class MmaIntrinsics:
    """Names of registered intrinsics, and the layouts of the fragments they work on."""

    load_a: str
    load_b: str
    fill: str
    compute: str
    store: str
    k: int
    a_fragment: Any  # (row, column) of a tile as it lies in shared memory -> (lane, element)
    b_fragment: Any
    c_fragment: Any


def mma_k(dtype: str) -> int:
    """Depth of one instruction: 32 bytes."""
    return 256 // dtype_bits(dtype)


def mma_intrinsics(
    dtypes: tuple[str, str], acc_dtype: str, a_inner: str, b_inner: str, is_split: bool = False, is_whole: bool = True
) -> MmaIntrinsics:
    """Intrinsics for operands A and B that lie in shared memory with axis `a_inner` and `b_inner` contiguous.

    Args:
        dtypes: of A and of B: one, or bytes with and without a sign.
        a_inner: "k" for tiles [m, k], "m" for [k, m] (16-bit dtypes only); b_inner: "k" or "n" likewise.
        is_split: of float32 alone: every operand is the sum of two of tf32 (`lowering.called_mma`).
        is_whole: one instruction multiplies 16 x 8; else four of 8 x 8 and half of K do, as Turing has them for bytes.
    """
    dtype, b_dtype = dtypes
    assert set(dtypes) <= _PTX.keys()
    assert dtype == b_dtype or set(dtypes) <= BYTES
    assert is_whole or set(dtypes) <= BYTES
    assert acc_dtype in _ACC_PTX
    assert dtype == "float32" or not is_split
    assert dtype_bits(dtype) == 16 or (a_inner, b_inner) == ("k", "k")
    k = mma_k(dtype)
    chunk = k // 2  # elements of one row of an 8 x 8 matrix
    per = chunk // 4  # elements of a lane's register

    def a_fragment(row: Any, column: Any) -> tuple[Any, Any]:
        i, kk = (row, column) if a_inner == "k" else (column, row)
        return 4 * (i % 8) + (kk % chunk) // per, 2 * per * (kk // chunk) + i // 8 * per + kk % per

    def b_fragment(row: Any, column: Any) -> tuple[Any, Any]:
        j, kk = (row, column) if b_inner == "k" else (column, row)
        return 4 * (j % 8) + (kk % chunk) // per, 2 * per * (j // 8) + kk // chunk * per + kk % per

    def c_fragment(row: Any, column: Any) -> tuple[Any, Any]:
        return 4 * (row % 8) + column % 8 // 2, 4 * (column // 8) + 2 * (row // 8) + column % 2

    ptx = (SPLIT_TYPE, SPLIT_TYPE) if is_split else (_PTX[dtype], _PTX[b_dtype])
    multiplied = "_".join((ptx[0] if ptx[0] == ptx[1] else "_".join(ptx), acc_dtype, a_inner, b_inner))
    names = MmaIntrinsics(
        f"subtune_ldmatrix_{dtype}_a_{a_inner}", f"subtune_ldmatrix_{b_dtype}_b_{b_inner}",
        f"subtune_mma_fill_{acc_dtype}", f"subtune_mma_{multiplied}{'' if is_whole else '_parts'}",
        f"subtune_mma_store_{acc_dtype}", k, a_fragment, b_fragment, c_fragment,
    )  # fmt: skip

    def a_offset(lane: Any, stride: Any) -> Any:  # where the 8 x 8 matrices begin: (i, k), (i + 8, k), (i, k + 8) ...
        if a_inner == "k":
            return stride * (lane % 16) + chunk * (lane // 16)
        return stride * (8 * (lane // 16) + lane % 8) + 8 * (lane % 16 // 8)

    def b_offset(lane: Any, stride: Any) -> Any:  # (j, k), (j, k + 8), (j + 8, k) ...
        if b_inner == "k":
            return stride * (8 * (lane // 16) + lane % 8) + chunk * (lane % 16 // 8)
        return stride * (lane % 16) + 8 * (lane // 16)

    shape_a = (TILE, k) if a_inner == "k" else (k, TILE)
    shape_b = (TILE, k) if b_inner == "k" else (k, TILE)
    _register(names.load_a, lambda: _ldmatrix(dtype, shape_a, a_inner != "k", a_fragment, a_offset))
    _register(names.load_b, lambda: _ldmatrix(b_dtype, shape_b, b_inner != "k", b_fragment, b_offset))
    _register(names.fill, lambda: _fill(acc_dtype, c_fragment))
    _register(names.compute, lambda: _mma(dtypes, ptx, acc_dtype, (a_inner, b_inner), names, is_whole))
    _register(names.store, lambda: _store(acc_dtype, c_fragment))
    return names


def _register(name: str, make: Any) -> None:
    from tvm.s_tir import TensorIntrin

    if TensorIntrin.get(name, allow_missing=True) is None:
        with cheap_stack():
            TensorIntrin.register(name, *make())


def _ldmatrix(dtype: str, shape: tuple[int, int], is_transposed: bool, fragment: Any, offset: Any) -> tuple[Any, Any]:
    from tvm.script import tirx as T

    rows, columns = shape
    local = rows * columns // LANES

    @T.prim_func(s_tir=True)
    def desc(warp_handle: T.handle, shared_handle: T.handle) -> None:
        shared = T.match_buffer(
            shared_handle, (rows, columns), dtype, align=64, offset_factor=columns, scope="shared.dyn"
        )
        warp = T.match_buffer(warp_handle, (LANES, local), dtype, align=64, offset_factor=columns, scope="warp")
        with T.sblock("root"):
            T.reads(shared[0:rows, 0:columns])
            T.writes(warp[0:LANES, 0:local])
            for ax0, ax1 in T.grid(rows, columns):
                with T.sblock("load"):
                    v0, v1 = T.axis.remap("SS", [ax0, ax1])
                    T.reads(shared[v0, v1])
                    lane, element = T.meta_var(fragment(v0, v1))
                    T.writes(warp[lane, element])
                    warp[lane, element] = shared[v0, v1]

    @T.prim_func(s_tir=True)
    def impl(warp_handle: T.handle, shared_handle: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        shared = T.match_buffer(
            shared_handle,
            (rows, columns),
            dtype,
            align=64,
            offset_factor=columns,
            scope="shared.dyn",
            strides=[s0, s1],
        )
        warp = T.match_buffer(warp_handle, (LANES, local), dtype, align=64, offset_factor=columns, scope="warp")
        with T.sblock("root"):
            T.reads(shared[0:rows, 0:columns])
            T.writes(warp[0:LANES, 0:local])
            for tx in T.thread_binding(0, LANES, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        is_transposed,
                        4,
                        ".b16",
                        warp.data,
                        warp.elem_offset + local * tx,
                        shared.access_ptr("r"),
                        offset(tx, s0),
                        dtype=dtype,
                    )
                )

    return desc, impl


def _fill(acc_dtype: str, fragment: Any) -> tuple[Any, Any]:
    from tvm import tirx
    from tvm.script import tirx as T

    zero = tirx.const(0, acc_dtype)

    @T.prim_func(s_tir=True)
    def desc(a: T.handle) -> None:
        warp = T.match_buffer(a, [LANES, 8], dtype=acc_dtype, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(warp[0:LANES, 0:8])
            for i0, i1 in T.grid(TILE, TILE):
                with T.sblock("fill"):
                    i, j = T.axis.remap("SS", [i0, i1])
                    lane, element = T.meta_var(fragment(i, j))
                    T.reads()
                    T.writes(warp[lane, element])
                    warp[lane, element] = zero

    @T.prim_func(s_tir=True)
    def impl(a: T.handle) -> None:
        warp = T.match_buffer(a, [LANES, 8], dtype=acc_dtype, scope="warp", offset_factor=1)
        with T.sblock("root"):
            T.reads()
            T.writes(warp[0:LANES, 0:8])
            for tx in T.thread_binding(0, LANES, "threadIdx.x"):
                for element in T.unroll(8):
                    warp[tx, element] = zero

    return desc, impl


# long: what the intrinsic means and what it does, in TVMScript, two functions of the same layouts
def _mma(
    dtypes: tuple[str, str], ptx: tuple[str, str], acc_dtype: str, inner: tuple[str, str], names: MmaIntrinsics,
    is_whole: bool,
) -> tuple[Any, Any]:  # fmt: skip
    from tvm import tirx
    from tvm.script import tirx as T

    (dtype, b_dtype), (a_inner, b_inner) = dtypes, inner
    a_ptx, b_ptx = ptx
    k = names.k
    local = TILE * k // LANES
    shape, parts = (f"m16n8k{k}", 2) if is_whole else (f"m8n8k{k // 2}", 8)
    acc_ptx = _ACC_PTX[acc_dtype]
    a_factor = k if a_inner == "k" else TILE
    b_factor = k if b_inner == "k" else TILE

    def places(part: Any) -> tuple[Any, Any, Any]:
        """Where a part begins in a lane's elements of A, B and the sums; halves of the columns are half of B's, and of
        the sums. In each: halves of A's rows, and of k.
        """
        if is_whole:
            return 0, part * (local // 2), part * 4
        columns, rows, deep = part // 4, part // 2 % 2, part % 2
        return local // 2 * deep + local // 4 * rows, local // 2 * columns + local // 4 * deep, 4 * columns + 2 * rows

    def widened(value: Any) -> Any:
        return value if dtype == acc_dtype else tirx.Cast(acc_dtype, value)

    def a_at(i: Any, kk: Any) -> Any:
        return names.a_fragment(i, kk) if a_inner == "k" else names.a_fragment(kk, i)

    def b_at(j: Any, kk: Any) -> Any:
        return names.b_fragment(j, kk) if b_inner == "k" else names.b_fragment(kk, j)

    @T.prim_func(s_tir=True)
    def desc(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (LANES, local), dtype, align=64, offset_factor=a_factor, scope="warp")
        B = T.match_buffer(b, (LANES, local), b_dtype, align=64, offset_factor=b_factor, scope="warp")
        C = T.match_buffer(c, (LANES, 8), acc_dtype, align=64, offset_factor=TILE, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:8], A[0:LANES, 0:local], B[0:LANES, 0:local])
            T.writes(C[0:LANES, 0:8])
            for i, j, kk in T.grid(TILE, TILE, k):
                with T.sblock("sum"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, kk])
                    lane_c, c_element = T.meta_var(names.c_fragment(vi, vj))
                    lane_a, a_element = T.meta_var(a_at(vi, vk))
                    lane_b, b_element = T.meta_var(b_at(vj, vk))
                    T.reads(C[lane_c, c_element], A[lane_a, a_element], B[lane_b, b_element])
                    T.writes(C[lane_c, c_element])
                    C[lane_c, c_element] += widened(A[lane_a, a_element]) * widened(B[lane_b, b_element])

    @T.prim_func(s_tir=True)
    def impl(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (LANES, local), dtype, align=64, offset_factor=a_factor, scope="warp")
        B = T.match_buffer(b, (LANES, local), b_dtype, align=64, offset_factor=b_factor, scope="warp")
        C = T.match_buffer(c, (LANES, 8), acc_dtype, align=64, offset_factor=TILE, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:8], A[0:LANES, 0:local], B[0:LANES, 0:local])
            T.writes(C[0:LANES, 0:8])
            for tx in T.thread_binding(0, LANES, "threadIdx.x"):
                for part in T.unroll(parts):
                    at_a, at_b, at_c = T.meta_var(places(part))
                    T.evaluate(
                        T.ptx_legacy.mma(
                            shape,
                            "row",
                            "col",
                            a_ptx,
                            b_ptx,
                            acc_ptx,
                            A.data,
                            A.elem_offset + tx * local + at_a,
                            B.data,
                            B.elem_offset + tx * local + at_b,
                            C.data,
                            C.elem_offset + tx * 8 + at_c,
                            False,
                            dtype=acc_dtype,
                        )
                    )

    return desc, impl


def _store(acc_dtype: str, fragment: Any) -> tuple[Any, Any]:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def desc(a: T.handle, c: T.handle) -> None:
        warp = T.match_buffer(a, [LANES, 8], dtype=acc_dtype, scope="warp")
        C = T.match_buffer(c, [TILE, TILE], dtype=acc_dtype, scope="shared.dyn")
        with T.sblock("root"):
            T.reads(warp[0:LANES, 0:8])
            T.writes(C[0:TILE, 0:TILE])
            for i0, i1 in T.grid(TILE, TILE):
                with T.sblock("store"):
                    v0, v1 = T.axis.remap("SS", [i0, i1])
                    lane, element = T.meta_var(fragment(v0, v1))
                    T.reads(warp[lane, element])
                    T.writes(C[v0, v1])
                    C[v0, v1] = warp[lane, element]

    @T.prim_func(s_tir=True)
    def impl(a: T.handle, c: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        warp = T.match_buffer(a, [LANES, 8], dtype=acc_dtype, scope="warp", offset_factor=1)
        C = T.match_buffer(c, [TILE, TILE], dtype=acc_dtype, scope="shared.dyn", offset_factor=1, strides=[s0, s1])
        with T.sblock("root"):
            T.reads(warp[0:LANES, 0:8])
            T.writes(C[0:TILE, 0:TILE])
            for tx in T.thread_binding(0, LANES, "threadIdx.x"):
                for pair in T.unroll(4):
                    for v in T.vectorized(2):
                        C[8 * (pair % 2) + tx // 4, 8 * (pair // 2) + tx % 4 * 2 + v] = warp[tx, 2 * pair + v]

    return desc, impl
