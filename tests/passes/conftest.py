"""What the tests of rewrites share: small modules, their operators counted, and their numbers compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from subtune.passes.exprs import op_name
from tests.plain_tvm import compiled


def _module(inputs: Sequence[tuple[tuple[int, ...], str]], body: Callable[..., Any]) -> tvm.IRModule:
    """`main(x0, x1, ...)` returning `body(x0, x1, ...)`, an expression or a tuple of them, in one dataflow block."""
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(inputs)]
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            result = body(*params)
            out = bb.emit_output(bb.normalize(relax.Tuple(list(result)) if isinstance(result, tuple) else result))
        bb.emit_func_output(out)
    return bb.finalize()


def _random(ty: Any, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = [int(d) for d in ty.shape], str(ty.dtype)
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if dtype == "bool" else 7, shape).astype(dtype)


def _run(mod: tvm.IRModule, arrays: Sequence[np.ndarray], *names: str) -> list[list[np.ndarray]]:
    """The outputs of each of some functions, on the same inputs."""
    vm = relax.VirtualMachine(compiled(mod), tvm.cpu())
    results = [vm[name](*[tvm.runtime.tensor(a) for a in arrays]) for name in names]
    return [[one.numpy()] if hasattr(one, "numpy") else [part.numpy() for part in one] for one in results]


def _both(before: tvm.IRModule, after: tvm.IRModule, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """The outputs of either: compiled together, in half the time, where they are nothing but their `main`."""
    if any(len(mod.functions) > 1 for mod in (before, after)):
        return [*_run(before, arrays, "main"), *_run(after, arrays, "main")]
    mods = {"before": before, "after": after}
    together = {name: mod["main"].with_attr("global_symbol", name) for name, mod in mods.items()}
    return _run(tvm.IRModule(together), arrays, *together)


def _agree(before: tvm.IRModule, after: tvm.IRModule, tolerance: float = 1e-5) -> None:
    """Same outputs on one random input, relative to the largest output."""
    relax.analysis.well_formed(after)
    rng = np.random.default_rng(0)
    arrays = [_random(param.ty, rng) for param in before["main"].params]
    for want, got in zip(*_both(before, after, arrays), strict=True):
        assert want.shape == got.shape
        assert want.dtype == got.dtype
        scale = max(1e-6, float(np.abs(want.astype(np.float64)).max(initial=0.0)))
        error = float(np.abs(want.astype(np.float64) - got.astype(np.float64)).max(initial=0.0))
        assert error <= tolerance * scale, f"off by {error / scale:.2e}"


def _ops(mod: tvm.IRModule) -> Counter[str]:
    """Operator name without `relax.` -> bindings of it in `main`."""
    names = [op_name(b.value) for block in mod["main"].body.blocks for b in block.bindings]
    return Counter(name.removeprefix("relax.") for name in names if name)


@pytest.fixture
def module() -> Callable[..., tvm.IRModule]:
    return _module


@pytest.fixture
def run() -> Callable[..., list[np.ndarray]]:
    return lambda mod, arrays: _run(mod, arrays, "main")[0]


@pytest.fixture
def agree() -> Callable[..., None]:
    return _agree


@pytest.fixture
def ops() -> Callable[[tvm.IRModule], Counter[str]]:
    return _ops


@pytest.fixture
def const() -> Callable[..., Any]:
    """A random constant of a shape: `const(3, 4)`; with positive=True all of it between 0.5 and 1.5."""
    rng = np.random.default_rng(1)

    def make(*shape: int, dtype: str = "float32", positive: bool = False) -> Any:
        array = rng.uniform(0.5, 1.5, shape) if positive else rng.standard_normal(shape)
        return relax.const(np.asarray(array).astype(dtype), dtype)

    return make
