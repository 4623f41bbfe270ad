"""A contraction brought into the form C[s, m, n] += A[s, m, k] * B[s, n, k] by schedule primitives alone.

    conv / matmul / batch matmul
->  A'[s, m, k] = prologue(A);  B'[s, n, k] = ...;  C'[s, m, n] += A' * B';  C = C';  epilogue
    extents padded to multiples of the tile: A' and B' are zero there, C' is cropped by the epilogue's bounds

Only primitives, so that the schedule stays a trace of the workload that TVM can replay from its database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.patterns.contraction import Contraction
from subtune.patterns.gemm import anchor_of, reindexed_roles
from subtune.tir.blocks import is_reduction, root_stages, stage_block
from subtune.tir.expressions import is_load_of, loads


@dataclass(frozen=True, slots=True)
class GemmBlocks:
    """Blocks of a schedule in GEMM form: the product, and the copies of A', B' and C' around it."""

    product: Any
    a: Any
    b: Any
    c: Any


def gemm_form(
    sch: Schedule, tile: tuple[int, int, int], a_inner: str = "k", b_inner: str = "k"
) -> GemmBlocks | NotApplicable:
    """Fuse axes of one role and pad them to multiples of `tile` (m, n, k).

    Args:
        a_inner: "k": A' is [s, m, k]; "m": [s, k, m]. b_inner: "k": [s, n, k]; "n": [s, k, n].
    """
    found = anchor_of(sch)
    if isinstance(found, NotApplicable):
        return found
    block, info = found
    copies = []
    layouts = (
        (("read", info.a.read), ["batch", "m", "k"] if a_inner == "k" else ["batch", "k", "m"]),
        (("read", info.b.read), ["batch", "n", "k"] if b_inner == "k" else ["batch", "k", "n"]),
        (("write", 0), ["batch", "m", "n"]),
    )
    for buffer, _ in layouts:
        copies.append(sch.reindex(block, buffer))
    for copy, (buffer, order) in zip(copies, layouts, strict=True):
        roles = reindexed_roles(sch, block, buffer, info)
        extents = _extents(sch, block, buffer)
        side = ("write", 0) if buffer[0] == "read" else ("read", 0)
        sch.transform_layout(copy, side, _fusing(roles, extents, order))
    roles = ["unit" if axis.extent == 1 else axis.role for axis in info.axes]
    extents = [iv.dom.extent for iv in sch.get(block).iter_vars]
    sch.transform_block_layout(block, _fusing(roles, extents, ["batch", "m", "n", "k"]))
    sch.pad_einsum(block, [1, *tile])
    return GemmBlocks(block, *copies)


def _extents(sch: Schedule, block: Any, buffer: tuple[str, int]) -> list[Any]:
    anchor = sch.get(block)
    region = (anchor.reads if buffer[0] == "read" else anchor.writes)[buffer[1]]
    return list(region.source.shape)


def _fusing(roles: list[str], extents: list[Any], order: list[str]) -> Any:
    """The index map that fuses dims of one role, in `order`; 0 for a role without dims."""
    axes = [tirx.Var(f"i{d}", extent.ty) for d, extent in enumerate(extents)]
    fused: dict[str, Any] = {}
    for role, extent, i in zip(roles, extents, axes, strict=True):
        if role != "unit":
            fused[role] = fused[role] * extent + i if role in fused else i
    return tirx.IndexMap(axes, [fused.get(role, tirx.IntImm(extents[0].ty, 0)) for role in order], None)


def widened(func: PrimFunc) -> PrimFunc:
    """`func` with a reduction that sums 16-bit floats summing in float32; what reads the sums rounds them.

    C: float16;  C += A * B        ->     C': float32;  C' += float32(A) * float32(B);  ... = float16(C')
    """
    import tvm_ffi

    root = func.body.block
    stages = root_stages(func)
    at = next((i for i, stage in enumerate(stages) if is_reduction(stage_block(stage))), None)
    if at is None:
        return func
    anchor = stage_block(stages[at])
    store = anchor.body
    if not isinstance(store, tirx.BufferStore) or str(store.buffer.dtype) not in ("float16", "bfloat16"):
        return func
    narrow, dtype = store.buffer, str(store.buffer.dtype)
    wide = tirx.decl_buffer(list(narrow.shape), "float32", f"{narrow.name}_float32")

    value = store.value
    while isinstance(value, tirx.Cast):
        value = value.value
    if not isinstance(value, tirx.Add) or not is_load_of(value.a, narrow):
        return func
    product = value.b
    while isinstance(product, tirx.Cast):
        product = product.value
    if not isinstance(product, tirx.Mul):
        return func
    sides = [tirx.Cast("float32", side) for side in (product.a, product.b)]
    total = tirx.BufferLoad(wide, list(store.indices)) + sides[0] * sides[1]
    stages[at] = _nest(
        anchor.name_hint, anchor.iter_vars, tirx.BufferStore(wide, total, list(store.indices)),
        tirx.BufferStore(wide, tirx.const(0.0, "float32"), list(store.indices)),
    )  # fmt: skip

    def rounded(load: ir.TensorLoad) -> Any:
        if not load.source.same_as(narrow):
            return load
        return tirx.Cast(dtype, tirx.BufferLoad(wide, list(load.indices)))

    for i in range(at + 1, len(stages)):
        block = stage_block(stages[i])
        body = tvm_ffi.structural_map(block.body, (ir.TensorLoad, rounded))
        stages[i] = _nest(block.name_hint, block.iter_vars, body, block.init)
    allocated = [b for b in root.alloc_buffers if not b.same_as(narrow)] + [wide]
    if any(param.same_as(narrow) for param in func.params):
        axes = [tirx.Var(f"o{i}", dim.ty) for i, dim in enumerate(narrow.shape)]
        iter_vars = [
            tirx.IterVar(ir.Range(tirx.IntImm(dim.ty, 0), dim), var, 0)
            for var, dim in zip(axes, narrow.shape, strict=True)
        ]
        load = tirx.Cast(dtype, tirx.BufferLoad(wide, list(axes)))
        stages.append(_nest(f"{narrow.name}_round", iter_vars, tirx.BufferStore(narrow, load, list(axes)), None))
    new_root = SBlock([], [], [], "root", tirx.SeqStmt(stages), None, allocated)
    return tirx.PrimFunc(func.params, SBlockRealize([], True, new_root), func.ret_type, func.attrs)


def _nest(name: str, iter_vars: Any, body: Any, init: Any | None) -> Any:
    """A perfect loop nest round one sblock whose axes have the dtype of `iter_vars`."""
    axes = list(iter_vars)
    loops = [tirx.Var(f"i{i}", iv.dom.extent.ty) for i, iv in enumerate(axes)]
    reads = [_point(load.source, load.indices) for load in loads(body.value) if not load.source.same_as(body.buffer)]
    block = SBlock(axes, reads, [_point(body.buffer, body.indices)], name, body, init)
    stmt: tirx.Stmt = SBlockRealize(loops, True, block)
    for var, iv in zip(reversed(loops), reversed(axes), strict=True):
        stmt = tirx.For(var, tirx.IntImm(iv.dom.extent.ty, 0), iv.dom.extent, tirx.ForKind.SERIAL, stmt)
    return stmt


def _point(buffer: Any, indices: Any) -> Any:
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(i, tirx.IntImm(i.ty, 1)) for i in indices])


def sums_narrowly(info: Contraction) -> bool:
    """Whether the workload itself sums in 16 bits: the kernel widens that."""
    return info.acc_dtype in ("float16", "bfloat16")
