"""A kernel and what calls it many times, as one library: on another machine every call from here would cost a message.

    main(first, calls, sets, seconds, offsets, a, b, …)
        for i < calls: kernel(a + offsets[(first + i) % sets][0], b + …)
        returns the nanoseconds, or FAILED as soon as the kernel says so

Arguments are arrays of bytes, larger than what the kernel wants: guard zones and other copies lie around it. After so
many `seconds` the process is ended. Two other libraries, the same for all kernels, are loaded as a session begins:

    begin()                         see `_begin`

    spread(source, array, copies)   array = source, source, …
    put, pack1, pack2, …            see `pack_there`
    near, compare, take             see `judge_there`
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm
from tvm import ir, tirx

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.join_kernels import by_address, flattened
from subtune.backends.cpu.lowering.judge_there import compare, near, take
from subtune.backends.cpu.lowering.launches import joined
from subtune.backends.cpu.lowering.pack_there import WIDTHS, pack, put
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.backends.cpu.lowering.sharing import KEEP_ON_STACK
from subtune.backends.host.kernel_library import write_library
from subtune.tir.statements import byte_array, integer

KERNEL, RING, SPREAD, COMPARE, BEGIN = "kernel", "main", "spread", "compare", "begin"
PUT, PACK, NEAR, TAKE = "put", "pack", "near", "take"
TOOLS = (SPREAD, COMPARE, PUT, NEAR, TAKE, *(f"{PACK}{width}" for width in WIDTHS))
FAILED = -1
_DIES_WITH_PARENT, _KILL, _MONOTONIC = 1, 9, 1
"""Of Linux with 64 bits: `prctl`'s option, a signal, a clock of two int64: seconds and nanoseconds."""


def ring(func: Any, target: tvm.target.Target) -> tvm.IRModule:
    """The library's functions, of a scheduled PrimFunc whose parameters are buffers of known shapes."""
    kernel = ir.GlobalVar(KERNEL)
    (flat,) = flattened({kernel: func}, target).values()
    whole = joined(flat)
    made = {kernel: by_address(whole, whole.body), ir.GlobalVar(RING): _ring(kernel, len(func.params))}
    return tvm.IRModule(made)


def tools() -> tvm.IRModule:
    """The other library's functions."""
    made = {SPREAD: _spread(), COMPARE: compare(), PUT: put(), NEAR: near(), TAKE: take()}
    made |= {f"{PACK}{width}": pack(width) for width in WIDTHS}
    return tvm.IRModule({ir.GlobalVar(name): func for name, func in made.items()})


def beginning() -> tvm.IRModule:
    """What each session begins with, alone: until it is there, a connection that breaks off stops the server."""
    return tvm.IRModule({ir.GlobalVar(BEGIN): _begin()})


def _begin() -> Any:
    """From its call on a child of the process serves the session, and ends as it may: the process itself ends well.

    TVM's server takes no further session once the process of one has ended with an error.
    """
    serves = _call("prctl", _DIES_WITH_PARENT, _KILL, 0, 0, 0)
    waits = tirx.SeqStmt([_call("wait", tirx.reinterpret("handle", integer(0))), _call("_exit", 0)])
    body = tirx.IfThenElse(tirx.call_extern("int32", "fork") > 0, waits, serves)
    return tirx.PrimFunc([], body).with_attr("global_symbol", BEGIN)


def write(mod: tvm.IRModule, device: CPUModel, path: Path) -> None:
    """Compile it for another machine."""
    compiled = tvm.compile(mod, device.target(), tir_pipeline=PIPELINE).mod
    write_library(compiled, str(path.with_suffix("")), device.host.triple)


def _ring(kernel: Any, count: int) -> Any:
    first, calls, sets, seconds, i = (tirx.Var(name, "int64") for name in ("first", "calls", "sets", "seconds", "i"))
    offsets = tirx.decl_buffer([tirx.Var("entries", "int64")], "int64", "offsets")
    arrays = [byte_array(f"array{j}") for j in range(count)]
    entry = tirx.floormod(first + i, sets) * integer(count)
    starts = [tirx.BufferLoad(offsets, [entry + integer(j)]) for j in range(count)]
    places = [tirx.handle_add_byte_offset(one.data, start) for one, start in zip(arrays, starts, strict=True)]
    called = ir.Call(kernel, places, ret_ty=ir.PrimType("int32"))
    call = tirx.IfThenElse(called != tirx.const(0, "int32"), tirx.Return(integer(FAILED)), None)
    loop = tirx.For(i, integer(0), calls, tirx.ForKind.SERIAL, call)
    clocks = tirx.decl_buffer([4], "int64", "clocks")
    read = [_call("clock_gettime", _MONOTONIC, tirx.address_of(clocks[at])) for at in (0, 2)]
    now = [tirx.BufferLoad(clocks, [integer(at)]) for at in range(4)]
    taken = (now[2] - now[0]) * integer(10**9) + now[3] - now[1]
    steps = [_call("alarm", tirx.Cast("int32", seconds)), read[0], loop, read[1], _call("alarm", 0)]
    on_stack = tirx.AllocBuffer(clocks, {KEEP_ON_STACK: tirx.IntImm("int32", 1)})
    body = tirx.SeqStmt([on_stack, *steps, tirx.Return(taken)])
    return tirx.PrimFunc([first, calls, sets, seconds, offsets, *arrays], body).with_attr("global_symbol", RING)


def _spread() -> Any:
    source, array = byte_array("source"), byte_array("array")
    copies, copy, at = (tirx.Var(name, "int64") for name in ("copies", "copy", "at"))
    stride = source.shape[0]
    store = tirx.BufferStore(array, tirx.BufferLoad(source, [at]), [copy * stride + at])
    one = tirx.For(at, integer(0), stride, tirx.ForKind.SERIAL, store)
    body = tirx.For(copy, integer(0), copies, tirx.ForKind.SERIAL, one)
    return tirx.PrimFunc([source, array, copies], body).with_attr("global_symbol", SPREAD)


def _call(name: str, *given: Any) -> Any:
    """Of the C library's function."""
    return tirx.Evaluate(tirx.call_extern("int32", name, *given))
