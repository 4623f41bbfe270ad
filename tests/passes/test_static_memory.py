"""Static memory: one place per tensor, views and results where they belong, and what is not planned left to TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from subtune.artifact.schema import decode, encode
from subtune.assembly.build import _run
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.memory_plan import Base, MemoryPlan, View
from subtune.passes.static_memory import plan_memory
from subtune.pipeline import TO_CALLS, TO_PROGRAM

F32 = "float32"
DEVICE = as_device(CPU(threads=1))


def build(shapes: list[tuple[int, ...]], body: Callable[..., Any], inputs: int | None = None) -> Any:
    """`body` on inputs of those shapes, in call_tir form, planned."""
    params = [relax.Var(f"p{i}", relax.TensorType(shape, F32)) for i, shape in enumerate(shapes)]
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            result = bb.emit_output(body(bb, *params))
        bb.emit_func_output(result)
    mod = relax.transform.LegalizeOps(skip_ops=["relax.reshape"])(bb.get())
    return plan_memory(_run(TO_CALLS, mod, DEVICE), len(shapes) if inputs is None else inputs)


def run(planned: tvm.IRModule, plan: MemoryPlan, given: dict[Base, list[np.ndarray]]) -> Any:
    """Run on arrays for inputs, weights and outputs; the arena is filled with NaN first."""
    arena = np.full(plan.arena_nbytes // 4 + 16, np.nan, F32)
    skip = -arena.ctypes.data % 64 // 4
    arena = arena[skip:]

    def tensor(view: View) -> Any:
        count = int(np.prod(view.shape))
        if view.base is Base.ARENA:
            assert view.place + 4 * count <= plan.arena_nbytes
            return tvm.runtime.from_dlpack(arena[view.place // 4 :][:count].reshape(view.shape))
        return tvm.runtime.from_dlpack(given[view.base][view.place].reshape(view.shape))

    vm = relax.VirtualMachine(DEVICE.backend.executable(_run(TO_PROGRAM, planned, DEVICE), DEVICE), tvm.cpu())
    return vm["main"](*map(tensor, plan.arguments))


def aligned(array: np.ndarray) -> np.ndarray:
    raw = np.empty(array.nbytes + 64, np.uint8)
    own = raw[-raw.ctypes.data % 64 :][: array.nbytes].view(array.dtype).reshape(array.shape)
    own[...] = array
    return own


def random(*shape: int) -> np.ndarray:
    return aligned(np.random.default_rng(len(shape)).standard_normal(shape).astype(F32))


def test_a_chain_of_views_and_calls() -> None:
    def body(bb: Any, x: Any, w: Any) -> Any:
        a = bb.emit(op.exp(x))
        b = bb.emit(op.matmul(bb.emit(op.reshape(a, (6, 8))), w))
        return bb.emit(op.add(bb.emit(op.reshape(b, (48,))), bb.emit(op.reshape(a, (48,)))))

    planned, plan = build([(4, 12), (8, 8)], body, inputs=1)
    # exp and the product are alive together; the sum is the output itself
    assert (plan.arena_nbytes, plan.bound_nbytes, plan.total_nbytes) == (384, 384, 384)
    assert [v.base.is_fixed for v in plan.arguments] == sorted(v.base.is_fixed for v in plan.arguments)
    assert {(v.base, v.place) for v in plan.arguments if v.base is not Base.ARENA} == {
        (Base.INPUT, 0),
        (Base.WEIGHT, 0),
        (Base.OUTPUT, 0),
    }
    assert len({v.shape for v in plan.arguments if v.base is Base.ARENA and v.place == plan.arguments[-1].place}) > 0
    x, w, y = random(4, 12), random(8, 8), aligned(np.zeros(48, F32))
    run(planned, plan, {Base.INPUT: [x], Base.WEIGHT: [w], Base.OUTPUT: [y]})
    np.testing.assert_allclose(y, (np.exp(x).reshape(6, 8) @ w).ravel() + np.exp(x).ravel(), rtol=1e-5)


def test_memory_is_used_again() -> None:
    def body(bb: Any, x: Any) -> Any:
        for _ in range(6):
            x = bb.emit(op.exp(bb.emit(op.negative(x))))
        return x

    planned, plan = build([(16, 16)], body)
    assert (plan.arena_nbytes, plan.total_nbytes) == (2 * 1024, 11 * 1024)
    x, y = random(16, 16), aligned(np.zeros((16, 16), F32))
    run(planned, plan, {Base.INPUT: [x], Base.OUTPUT: [y]})
    expected = x
    for _ in range(6):
        expected = np.exp(-expected)
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_results_that_no_kernel_writes_are_copies() -> None:
    def body(bb: Any, x: Any, w: Any) -> Any:
        y = bb.emit(op.exp(x))
        views = [bb.emit(op.reshape(v, (32,))) for v in (y, x, w)]
        return bb.emit(relax.Tuple([y, x, *views, y]))

    planned, plan = build([(4, 8), (4, 8)], body, inputs=1)
    assert plan.arena_nbytes == 0
    assert plan.returned == ()
    assert plan.copies == (
        (1, View(Base.INPUT, 0, (4, 8), F32)),
        (2, View(Base.OUTPUT, 0, (32,), F32)),
        (3, View(Base.INPUT, 0, (32,), F32)),
        (4, View(Base.WEIGHT, 0, (32,), F32)),
        (5, View(Base.OUTPUT, 0, (4, 8), F32)),
    )
    x, y = random(4, 8), aligned(np.zeros((4, 8), F32))
    run(planned, plan, {Base.INPUT: [x], Base.OUTPUT: [y]})
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-5)


def test_several_outputs_of_one_kernel() -> None:
    def body(bb: Any, x: Any) -> Any:
        parts = bb.emit(op.split(bb.emit(op.exp(x)), 2, axis=1))
        return bb.emit(op.subtract(parts[1], parts[0]))

    planned, plan = build([(4, 8)], body)
    x, y = random(4, 8), aligned(np.zeros((4, 4), F32))
    run(planned, plan, {Base.INPUT: [x], Base.OUTPUT: [y]})
    np.testing.assert_allclose(y, np.exp(x)[:, 4:] - np.exp(x)[:, :4], rtol=1e-4, atol=1e-6)


def test_what_is_not_planned_keeps_what_it_reads() -> None:
    def body(bb: Any, x: Any) -> Any:
        a = bb.emit(op.exp(x))
        kept = bb.emit(op.call_pure_packed("vm.builtin.copy", a, ty_args=relax.TensorType((4, 8), F32)))
        for _ in range(3):
            x = bb.emit(op.negative(x))
        return bb.emit(relax.Tuple([kept, bb.emit(op.add(x, kept))]))

    planned, plan = build([(4, 8)], body)
    assert plan.returned == (0,)
    x, y = random(4, 8), aligned(np.zeros((4, 8), F32))
    (kept,) = run(planned, plan, {Base.INPUT: [x], Base.OUTPUT: [np.empty(0, F32), y]})
    np.testing.assert_allclose(kept.numpy(), np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(y, np.exp(x) - x, rtol=1e-4, atol=1e-6)


def test_a_constant_result() -> None:
    def body(bb: Any, x: Any) -> Any:
        return bb.emit(relax.Tuple([relax.const(3.0, F32), bb.emit(op.exp(x))]))

    planned, plan = build([(4,)], body)
    assert plan.returned == (0,)
    x, y = random(4), aligned(np.zeros(4, F32))
    (three,) = run(planned, plan, {Base.INPUT: [x], Base.OUTPUT: [np.empty(0, F32), y]})
    assert three.numpy() == 3.0
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-5)


def test_the_plan_survives_the_manifest() -> None:
    def body(bb: Any, x: Any) -> Any:
        return bb.emit(relax.Tuple([bb.emit(op.exp(bb.emit(op.exp(x)))), x]))

    _, plan = build([(4, 8)], body)
    assert decode(MemoryPlan, encode(plan)) == plan
