"""Chains of activations are compiled in bounded time, and compute what they computed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.relax import op

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.named_values import many_in_buffers
from subtune.core.candidate import DEFAULT
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from tests.backends.workloads import build

ACTIVATIONS = (op.nn.gelu, op.nn.silu, op.nn.gelu, op.tanh, op.nn.silu)


def chain(length: int) -> Workload:
    def body(emit: Any, x: Any) -> Any:
        for activation in ACTIVATIONS[: length - 1]:
            x = emit(activation(x))
        return ACTIVATIONS[length - 1](x)

    return build(body, [(7, 37)])


@pytest.mark.parametrize("length", [1, 3, 5])
def test_chains_are_compiled_in_time(length: int, device: CPUModel) -> None:
    """What took minutes: the limit is far above what it takes now."""
    workload = chain(length)
    first = backends.candidates(workload, device)[0]
    begin = time.monotonic()
    outputs = [computed(workload, candidate, device) for candidate in (DEFAULT, first)]
    assert time.monotonic() - begin < 20
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-5, atol=1e-6)


def computed(workload: Workload, candidate: Any, device: CPUModel) -> np.ndarray:
    kernel = backends.schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel)
    made = as_device(device)
    lowered = made.backend.lower(kernel.func.with_attr("global_symbol", "main"), made)["main"]
    x = np.random.default_rng(0).standard_normal((7, 37), np.float32) * 4
    out = tvm.runtime.tensor(np.zeros((7, 37), "float32"))
    lowered(tvm.runtime.tensor(x), out)
    return out.numpy()


def stored(value: Callable[[Any], Any]) -> Any:
    out = tirx.decl_buffer([8], "float32", "out")
    zero = tirx.const(0, "int32")
    body = tirx.BufferStore(out, value(tirx.BufferLoad(out, [zero])), [zero])
    func = tirx.PrimFunc([out], body)
    return many_in_buffers()(tvm.IRModule({"main": func}))["main"].body


def named(depth: int) -> Callable[[Any], Any]:
    def value(x: Any) -> Any:
        var = tirx.Var("t", "float32")
        body = var * var if depth == 1 else named(depth - 1)(var * var)
        return tirx.Let(var, x, body)

    return value


@pytest.mark.parametrize(("depth", "buffers"), [(1, 0), (4, 0), (5, 5), (9, 9)])
def test_only_many_names_become_buffers(depth: int, buffers: int) -> None:
    found: list[Any] = []
    tvm_ffi.structural_walk(stored(named(depth)), (tirx.AllocBuffer, found.append))
    assert len(found) == buffers


def test_what_a_condition_guards_stays() -> None:
    def value(x: Any) -> Any:
        return tirx.if_then_else(x < tirx.const(1.0, "float32"), named(6)(x), x)

    assert isinstance(stored(value), tirx.BufferStore)


def test_names_round_a_choice_become_buffers_and_those_in_it_stay() -> None:
    def value(x: Any) -> Any:
        inner = tirx.if_then_else(x < tirx.const(1.0, "float32"), named(2)(x), x * x)
        return named(6)(tirx.if_then_else(x < tirx.const(0.0, "float32"), inner, x))

    body, buffers, lets = stored(value), [], []
    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, buffers.append))
    tvm_ffi.structural_walk(body, (tirx.Let, lets.append))
    assert len(buffers) == 6
    assert len(lets) == 2
