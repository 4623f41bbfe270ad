"""What GPU policies and templates know of a contraction as a matrix product: extents, operands as memory sees them.

    C[s, m, n] += A[s, m, k] * B[s, n, k]

Matmul, batch matmul and convolution (implicit GEMM: m runs over pixels, k over the window and the channels) are
all of this form once axes of one role are fused. Nothing is inlined into the anchor: the prologue (padding, cast,
scale) belongs to the copy of an operand to shared memory, the epilogue to the copy of the sums out of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod
from typing import Any

from tvm import ir, sym, tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.contraction import Contraction, contraction
from subtune.tir.blocks import all_blocks, is_reduction
from subtune.tir.expressions import loads, variables

_VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class GemmOperand:
    """A or B as the kernel reads it: through its prologue, from the arrays that the caller passes."""

    read: int
    """Position among the anchor's reads."""
    dtype: str
    """Of what the anchor multiplies, after the prologue."""
    inner: str
    """Role of the axis that is contiguous in memory: "k", or "m" of A and "n" of B."""
    vector: int
    """Elements that one aligned access of at most 16 bytes can fetch along `inner`; 1 where nothing is known."""
    is_copy: bool
    """The prologue only moves elements, or fills with zeros: asynchronous copies can do that."""
    nbytes: int
    """Bytes of all arrays that are read for it, but for what no window looks at."""
    param: int
    """The parameter that is read without any prologue, or -1."""
    is_constant: bool


@dataclass(frozen=True, slots=True)
class Gemm:
    """Extents after fusing, operands, and what the epilogue reads and writes."""

    batch: int
    m: int
    n: int
    k: int
    a: GemmOperand
    b: GemmOperand
    acc_dtype: str
    epilogue_bytes: int
    """Bytes of the outputs and of whatever the epilogue reads beside the sums."""
    out_vector: int
    """Elements of the widest aligned store along n that all outputs allow."""
    is_window: bool
    """A is read through windows: convolution."""

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def compulsory_bytes(self) -> int:
        return self.a.nbytes + self.b.nbytes + self.epilogue_bytes


@lru_cache(maxsize=64)
def gemm(workload: Workload) -> Gemm | NotApplicable:
    """`workload` as a matrix product, or the reason why it is none; worked out once."""
    sch = Schedule(workload.func)
    found = anchor_of(sch)
    if isinstance(found, NotApplicable):
        return found
    block, info = found
    extents = {role: prod(axis.extent for axis in info.of_role(role)) for role in ("batch", "m", "n", "k")}
    operands = []
    for operand, outer in ((info.a, "m"), (info.b, "n")):
        copy = sch.reindex(block, ("read", operand.read))
        roles = reindexed_roles(sch, block, ("read", operand.read), info)
        if {"k", outer} & {role for role, extent in extents.items() if extent > 1} - set(roles):
            return NotApplicable("a reduced axis does not index both operands")
        reason = inline_producers(sch, copy)
        if reason:
            return NotApplicable(reason)
        operands.append(_operand(sch, copy, roles, operand, info, outer, workload))
    sources = {param for operand in operands for param in operand[1]}
    first, of_first = operands[0]
    operands[0] = (replace(first, nbytes=int(first.nbytes * info.read_share)), of_first)
    others = sum(arg.nbytes for i, arg in enumerate(workload.args) if i not in sources)
    a, b = (operand for operand, _ in operands)
    return Gemm(
        extents["batch"], extents["m"], extents["n"], extents["k"], a, b, info.acc_dtype,
        others, _out_vector(workload, info, extents["n"]), any(info.a.windows),
    )  # fmt: skip


def anchor_of(sch: Schedule) -> tuple[Any, Contraction] | NotApplicable:
    """The anchor block and its form; its prologue and epilogue stay blocks of their own."""
    try:
        reductions = [b for b in all_blocks(sch) if is_reduction(sch.get(b))]
    except (ScheduleError, ValueError, RuntimeError) as e:
        return NotApplicable(f"not made of schedulable blocks: {str(e).strip().splitlines()[-1]}")
    if len(reductions) != 1:
        return NotApplicable(f"{len(reductions)} reductions, a matrix product has one")
    info = contraction(sch, reductions[0])
    if isinstance(info, NotApplicable):
        return info
    if info.per_group:
        return NotApplicable("a grouped convolution: each group is a product of its own")
    if info.a.read == info.b.read:
        return NotApplicable("both operands are one array")
    return reductions[0], info


def reindexed_roles(sch: Schedule, block: Any, buffer: tuple[str, int], info: Contraction) -> list[str]:
    """The role of each dim of a buffer that `Schedule.reindex` made; "unit" where its extent is one."""
    anchor = sch.get(block)
    regions = anchor.reads if buffer[0] == "read" else anchor.writes
    position = {iv.var: i for i, iv in enumerate(anchor.iter_vars)}
    axes = [info.axes[position[r.min]] for r in regions[buffer[1]].region]
    return ["unit" if axis.extent == 1 else axis.role for axis in axes]


def inline_producers(sch: Schedule, block: Any) -> str:
    """Inline all that `block` reads from other blocks into it; the reason why that is impossible, or ""."""
    for _ in range(64):
        producers = list(sch.get_producers(block))
        if not producers:
            return ""
        for producer in producers:
            try:
                sch.compute_inline(producer)
            except ScheduleError as e:
                return f"the prologue cannot be inlined: {str(e).strip().splitlines()[-1]}"
    return "the prologue is too long"


def _operand(
    sch: Schedule, copy: Any, roles: list[str], operand: Any, info: Contraction, outer: str, workload: Workload
) -> tuple[GemmOperand, set[int]]:
    """The operand, and the parameters that are read for it."""
    block = sch.get(copy)
    store = block.body
    params = list(sch.mod["main"].params)
    read = loads(store.value)
    dims = list(store.indices)
    extents = {iv.var: int(iv.dom.extent) for iv in block.iter_vars}
    role_of = {index: role for index, role in zip(dims, roles, strict=True) if isinstance(index, ir.Var)}
    inner, elements = "k", 1
    for role in ("k", outer):
        axes = [var for var in dims if role_of.get(var) == role]
        if axes:
            width = _run(read, axes[-1], extents)
            if width > elements:
                inner, elements = role, width
    used = {i for i, param in enumerate(params) if any(load.source.same_as(param) for load in read)}
    itemsize = max([dtype_bits(operand.dtype), *(dtype_bits(str(load.source.dtype)) for load in read)]) // 8
    return (
        GemmOperand(
            operand.read, operand.dtype, inner, min(elements, max(1, _VECTOR_BYTES // itemsize)),
            _is_copy(store.value), sum(workload.args[i].nbytes for i in used), operand.param, operand.is_constant,
        ),
        used,
    )  # fmt: skip


def _run(read: list[Any], var: Any, extents: dict[Any, int]) -> int:
    """The largest power of two of elements along `var` that all loads can fetch with one aligned access."""
    width = 16
    for load in read:
        if not any(var in variables(index) for index in load.indices):
            continue  # broadcast along `var`
        *outer, last = load.indices
        if any(var in variables(index) for index in outer) or var not in variables(last):
            return 1
        others = sorted((v for v in variables(last) if not v.same_as(var)), key=lambda v: str(v.name))
        coefficients = sym.detect_linear_equation(last, [var, *others])
        if not coefficients or not all(isinstance(c, tirx.IntImm) for c in coefficients):
            return 1
        step, *rest = (int(c) for c in coefficients)
        if step != 1:
            return 1
        width = gcd(width, int(load.source.shape[-1]), extents[var], *(abs(c) for c in rest))
    return width


def _is_copy(value: Any) -> bool:
    """A load, or a load where a condition holds and zero elsewhere."""
    if isinstance(value, ir.TensorLoad):
        return True
    if isinstance(value, ir.Call) and "if_then_else" in str(value.op):
        _, then, other = value.args
        is_zero = isinstance(other, tirx.IntImm | tirx.FloatImm) and float(other.value) == 0
        return is_zero and _is_copy(then)
    return False


def _out_vector(workload: Workload, info: Contraction, n: int) -> int:
    """n is the innermost output axis of the anchor; an epilogue that keeps it (or several in a row) stores along it."""
    width = 16
    for arg in workload.args:
        if arg.is_output:
            width = gcd(width, n if arg.shape and int(arg.shape[-1]) % n == 0 else 1)
    return width
