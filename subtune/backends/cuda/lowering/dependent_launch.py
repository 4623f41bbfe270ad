"""Kernels that start while the one before them ends: programmatic dependent launch, from sm_90 on.

Between two kernels that follow one another a GPU drains the first, starts the second's blocks and fetches its code:
about a microsecond, which is a third of a small model. A kernel made here is launched before the one before it has
ended, and waits for that before it touches global memory: then all that was written can be seen. So a kernel that waits
for one waits for all before it. Weights are none of it: the first of them may be copied before (`weights_ahead`).

How early the next one starts is up to the first. One of few blocks, which leaves multiprocessors free, lets it start at
once: on an H200 that takes 20 % off GPT-2 at batch 1. A larger one lets it start when its last block ends: blocks that
wait would take places on the multiprocessors that happen to be free first, and all of them would be served by those.
Where kernels of more than 100 blocks let the next one start at once, BERT at 24 words took 14 % longer.
Where that depends on a kernel's numbers it is worth less: of a product on tensor cores that takes 3 us, an instruction
that comes first of all takes 0.3 off, and one behind the first look at the numbers nothing.
Attention on Hopper, whose blocks all run at once but leave no room, lets it start when all has been copied. What lives
off the L1 cache starts late itself (`STARTS_LATE`): a multiprocessor whose blocks have much shared memory has little of
that cache.

Sources: CUDA programming guide, programmatic dependent launch; PTX ISA, griddepcontrol.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf, prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.script import tirx as T
from tvm.sym.analyzer import Analyzer

from subtune.backends.cuda.lowering.settled import at_greatest
from subtune.backends.cuda.lowering.weights_ahead import weights_ahead
from subtune.core.variants import GREATEST
from subtune.tir.substitute import substitute
from subtune.tir.walk import found

_PARAMS = "tirx.kernel_launch_params"
_TAG = "tirx.use_programtic_dependent_launch"  # TVM's spelling
_FIRST_ARCH = 90
_MULTIPROCESSORS = 132
"""Of an H200, with which this was measured."""
_FEW_THREADS = _MULTIPROCESSORS * 512
"""Of a kernel: a quarter of the places."""
_FEW_BLOCKS = _MULTIPROCESSORS * 3 // 4
"""Of a kernel: a quarter of the multiprocessors stays free for the next one's."""
_BLOCKS_OF_ONE = "tirx.launch_bounds_min_blocks_per_sm"
"""Attribute of kernels that fill multiprocessors: how many of their blocks one has at once."""
_MOST_BLOCKS = "subtune.most_blocks"
"""On a kernel for many shapes: how many it has at its greatest instance, along the axes where that varies."""
STARTS_LATE = "subtune.starts_late"
"""On kernels that are launched when the one before them has ended, unless they have few threads."""


@tvm.transform.module_pass(opt_level=0, name="subtune.StartEarly")  # type: ignore[untyped-decorator]
def start_early(mod: IRModule, _context: PassContext) -> IRModule:
    """Run before host and device are split: kernels will be launched so."""

    def launched(func: Any) -> Any:
        is_late = STARTS_LATE in (func.attrs or {}) and not _is_small(func)
        if is_late or not _has_instruction(func):
            return func
        made = func if _waits(func.body) else weights_ahead(func)
        return made.with_body(_with_most_blocks(made)).with_attr(_PARAMS, [_TAG])

    return _with_kernels(mod, launched)


@tvm.transform.module_pass(opt_level=0, name="subtune.WaitForPrevious")  # type: ignore[untyped-decorator]
def wait_for_previous(mod: IRModule, _context: PassContext) -> IRModule:
    """Run on kernels: the instructions, the wait first of all where the kernel does not have it in a better place."""

    def waiting(func: Any) -> Any:
        if _TAG not in (func.attrs.get(_PARAMS) or ()):
            return func
        start, has_own_wait = _starting_next(func), _waits(func.body)
        if has_own_wait and isinstance(start, tirx.IfThenElse):
            return func.with_body(_before_wait(func.body, start))
        waits = [] if has_own_wait else [_wait()]
        steps = [*waits, *([start] if start is not None else [])]  # or all that follow would wait for the first
        return func.with_body(tirx.SeqStmt([*steps, func.body])) if steps else func

    return _with_kernels(mod, waiting)


def _with_kernels(mod: IRModule, change: Any) -> IRModule:
    changed = mod.clone()
    for name, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            changed.update_func(name, change(func))
    return changed


def _starting_next(func: Any) -> Any | None:
    """The statement that lets the next kernel start; of a kernel for many shapes, where its blocks are few."""
    known, symbolic = _extents(func.body)
    start = tirx.Evaluate(T.ptx.griddepcontrol.launch_dependents())
    blocks = prod(extent for tag, extent in known.items() if tag.startswith("blockIdx"))
    few = _MULTIPROCESSORS * int(func.attrs[_BLOCKS_OF_ONE]) if _BLOCKS_OF_ONE in func.attrs else _FEW_BLOCKS
    if not symbolic:
        return start if _is_small(func) and blocks <= few else None
    most = min(_FEW_THREADS // prod(known.values()), few // blocks)
    if any(str(one.attr_key) == _MOST_BLOCKS and int(one.value) <= most for one in found(func.body, tirx.AttrStmt)):
        return start
    return tirx.IfThenElse(prod(symbolic.values()) <= most, start, None)


def _with_most_blocks(func: Any) -> Any:
    """The body with a word, inside each kernel for many shapes, of its blocks at the greatest instance."""
    greatest = at_greatest(func)

    def said(stmt: Any) -> Any:
        if isinstance(stmt, tirx.SeqStmt):
            return tirx.SeqStmt([said(one) for one in stmt.seq])
        if not isinstance(stmt, tirx.AttrStmt) or str(stmt.attr_key) != "thread_extent":
            return stmt
        most = prod(_extents_at_greatest(func, _extents(stmt)[1].values()))
        inside = tirx.AttrStmt(0, _MOST_BLOCKS, tirx.IntImm("int64", int(most)), stmt.body) if most < inf else stmt.body
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, inside)

    return said(func.body) if greatest else func.body


def _before_wait(body: Any, start: Any) -> Any:
    """The body with `start` right before it waits, not first of all: a kernel's first look at its numbers takes 0.1 us,
    which weights on their way hide."""
    wait = _wait()

    def found_one(stmt: Any) -> Any:
        return tirx.SeqStmt([start, stmt]) if tvm_ffi.structural_equal(stmt, wait) else stmt

    return tvm_ffi.structural_map(body, (tirx.Evaluate, found_one))


def _is_small(func: Any) -> bool:
    """Whether its blocks all run at once, and leave room; of a kernel for many shapes, at the greatest one."""
    known, symbolic = _extents(func.body)
    if symbolic and GREATEST not in func.attrs:
        return False
    return prod(known.values()) * prod(_extents_at_greatest(func, symbolic.values())) <= _FEW_THREADS


def _extents_at_greatest(func: Any, extents: Collection[Any]) -> list[float]:
    """What extents in a kernel's leading parameters, or in what is bound to these, are at its greatest instance."""
    if not extents:
        return []
    values = at_greatest(func)
    for bind in found(func.body, tirx.Bind):
        if str(getattr(bind.var.ty, "dtype", "")).startswith("int"):
            values[bind.var] = Analyzer().simplify(substitute(bind.value, values))
    simple = [Analyzer().simplify(substitute(extent, values)) for extent in extents]
    return [int(one) if isinstance(one, tirx.IntImm) else inf for one in simple]


def _extents(body: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """How many threads and blocks it has along each axis: numbers, and what the symbols say."""
    known: dict[str, int] = {}
    symbolic: dict[str, Any] = {}

    def look(stmt: Any) -> None:
        if str(stmt.attr_key) != "thread_extent":
            return
        tag = str(stmt.node.thread_tag)
        if tag.startswith("cluster"):  # blocks are counted already
            return
        if isinstance(stmt.value, tirx.IntImm):
            known[tag] = max(known.get(tag, 1), int(stmt.value))
        else:
            symbolic[tag] = stmt.value

    tvm_ffi.structural_walk(body, (tirx.AttrStmt, look), order="post")
    return known, symbolic


def _has_instruction(func: Any) -> bool:
    target = func.attrs.get("target") if func.attrs else None
    digits = str(target.attrs.get("arch", "")).removeprefix("sm_").rstrip("af") if target else ""
    return digits.isdigit() and int(digits) >= _FIRST_ARCH


def _wait() -> Any:
    return tirx.Evaluate(T.ptx.griddepcontrol.wait())


def _waits(body: Any) -> bool:
    return any(str(getattr(call.op, "name", "")) == "tirx.ptx.griddepcontrol" for call in found(body, tvm.ir.Call))
