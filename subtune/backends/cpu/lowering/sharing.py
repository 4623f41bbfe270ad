"""Parallel loops whose threads take over from one another: none waits while another has work left that nobody began.

A core is not always one's own: an interrupt, another process or a hyper-thread takes some of its time for a moment, and
where everyone has a fixed part of a loop, all wait for that core. So every share of a loop has a counter of the pieces
that were begun. A thread takes pieces of its own share, in order, and then of the others':

    for i in parallel(100): body
->  for t in parallel(2):                             # its own share first: what it wrote there is in its own cache
      for s in range(2):
        share = (t + s) % 2
        while (piece = claim(begun[share])) < pieces of a share:  for i in piece: body

`claim` is one atomic addition, on a cache line that is the thread's own until it has finished its share. On two cores
of a Zen 3, equally fast but for interruptions of about a millisecond, a RegNet takes 0.95 to 0.97 of the time, and 0.65
to 0.8 while other processes use a core (medians, run in turns with fixed halves).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

KEEP_ON_STACK = "disable_lower_builtin"
"""As `tirx.transform.kDisableLowerTVMBuiltin`: a buffer that is not taken from TVM's workspace."""

_PIECES = 16
"""Of a share, at most: what is left when the first thread has nothing to begin is at most a piece."""
_SHARES = 8
"""At most: who looks for work asks for it at every share."""
_LINE = 16
"""int32 elements between counters: every share's has a cache line to itself."""
_CLAIM = "subtune_claim"
_LLVM = f"""; ModuleID = 'sharing'
define linkonce_odr hidden i32 @{_CLAIM}(ptr %counter) alwaysinline nounwind {{
  %before = atomicrmw add ptr %counter, i32 1 monotonic, align 4
  ret i32 %before
}}
"""


def shared_out(attribute: str) -> Any:
    """The pass, on functions that have `attribute`: those whose loops can be taken apart, as no iteration fails."""

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        if not func.attrs or attribute not in func.attrs or "target" not in func.attrs:
            return func
        return _shared(func, int(func.attrs["target"].attrs["num-cores"]))

    return run


def _shared(func: PrimFunc, threads: int) -> PrimFunc:
    shares = min(threads, _SHARES)
    count = sum(_is_shared(loop, threads) for loop in _at_root(func.body))
    if not count:
        return func
    size = count * shares * _LINE
    begun = tirx.decl_buffer([size], "int32", "begun", scope="local", data_alignment=4 * _LINE)
    places = iter(range(0, size, shares * _LINE))

    def rewritten(stmt: Any) -> Any:
        if isinstance(stmt, tirx.SeqStmt):
            return tirx.SeqStmt([rewritten(one) for one in stmt.seq])
        if isinstance(stmt, tirx.AttrStmt):
            return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, rewritten(stmt.body))
        is_shared = isinstance(stmt, tirx.For) and _is_shared(stmt, threads)
        return _taken_over(stmt, threads, shares, begun, next(places)) if is_shared else stmt

    counters = tirx.AllocBuffer(begun, {KEEP_ON_STACK: _int(1)})
    zeros = [tirx.BufferStore(begun, _int(0), [_int(at)]) for at in range(0, size, _LINE)]
    whole = tirx.SeqStmt([counters, *zeros, rewritten(func.body)])
    return func.with_body(tirx.AttrStmt(_int(0), "pragma_import_llvm", ir.StringImm(_LLVM), whole))


def _at_root(stmt: Any) -> Iterator[Any]:
    """Loops that run once in a call: their counters are set back at its beginning."""
    if isinstance(stmt, tirx.SeqStmt):
        for one in stmt.seq:
            yield from _at_root(one)
    elif isinstance(stmt, tirx.AttrStmt):
        yield from _at_root(stmt.body)
    elif isinstance(stmt, tirx.For):
        yield stmt


def _is_shared(loop: Any, threads: int) -> bool:
    if loop.kind != tirx.ForKind.PARALLEL or threads == 1 or int(loop.min) != 0:
        return False
    return not isinstance(loop.extent, tirx.IntImm) or threads < int(loop.extent)


def _taken_over(loop: Any, threads: int, shares: int, begun: Any, at: int) -> Any:
    """The loop in pieces, the counters of which begin at `at`."""
    if isinstance(loop.extent, tirx.IntImm):
        extent = int(loop.extent)
        length = max(1, extent // (shares * _PIECES))
        pieces = ceil(extent / length)
        return _in_pieces(loop, threads, shares, begun, at, (length, pieces, ceil(pieces / shares)))
    many = loop.extent.astype("int32")
    length, pieces, of_share = (tirx.Var(name, "int32") for name in ("length", "pieces", "of_share"))
    taken = _in_pieces(loop, threads, shares, begun, at, (length, pieces, of_share))
    for var, value in (
        (of_share, tirx.floordiv(pieces + _int(shares - 1), _int(shares))),
        (pieces, tirx.floordiv(many + length - _int(1), length)),
        (length, tirx.max(_int(1), tirx.floordiv(many, _int(shares * _PIECES)))),
    ):
        taken = tirx.SeqStmt([tirx.Bind(var, value), taken])
    return taken


def _in_pieces(loop: Any, threads: int, shares: int, begun: Any, at: int, sizes: tuple[Any, Any, Any]) -> Any:
    """`sizes`: iterations of a piece, pieces of all, and of a share."""
    length, pieces, of_share = (_int(one) if isinstance(one, int) else one for one in sizes)
    thread, other = tirx.Var("thread", "int32"), tirx.Var("other", "int32")
    share = (thread + other) % _int(shares)
    piece = tirx.decl_buffer([1], "int32", "piece", scope="local")
    taken = tirx.BufferLoad(piece, [_int(0)])
    counter = tirx.address_of(tirx.BufferLoad(begun, [_int(at) + share * _int(_LINE)]))
    claim = tirx.BufferStore(piece, tirx.call_extern("int32", _CLAIM, counter), [_int(0)])
    dtype = str(loop.loop_var.ty.dtype)
    first = ((share * of_share + taken) * length).astype(dtype)
    count = tirx.min(length.astype(dtype), loop.extent - first)
    inner = tirx.For(loop.loop_var, first, count, tirx.ForKind.SERIAL, loop.body)
    left = tirx.min(of_share, pieces - share * of_share)
    shared = tirx.SeqStmt([claim, tirx.While(taken < left, tirx.SeqStmt([inner, claim]))])
    around = tirx.For(other, _int(0), _int(shares), tirx.ForKind.SERIAL, shared)
    own = tirx.SeqStmt([tirx.AllocBuffer(piece, {KEEP_ON_STACK: _int(1)}), around])
    return tirx.For(thread, _int(0), _int(threads), tirx.ForKind.PARALLEL, own)


def _int(value: int) -> Any:
    return tirx.const(value, "int32")
