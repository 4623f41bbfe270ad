"""Which models cannot tell denormal numbers from zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.denormals import hides_denormals
from tests.passes.test_outline import F32, module

_EPS = relax.const(np.float32(1e-5))


def hides(compute: Callable[[Any], Any]) -> bool:
    return hides_denormals(module(lambda _emit, x: compute(x), ((4, 8), F32)))


def constant(*shape: int) -> Any:
    return relax.const(np.ones(shape, np.float32))


HIDING: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: op.nn.relu(op.matmul(x, constant(8, 8))),
    "softmax inside": lambda x: op.matmul(op.nn.softmax(x), constant(8, 8)),
    "norm": lambda x: op.nn.layer_norm(x, constant(8), constant(8), [-1]),
    "norm in steps": lambda x: op.divide(x, op.sqrt(op.add(op.mean(op.square(x), -1, keepdims=True), _EPS))),
    "constant divisor": lambda x: op.divide(x, relax.const(np.float32(8))),
    "divisor with a bound": lambda x: op.divide(x, op.maximum(x, _EPS)),
    "square": lambda x: op.power(x, relax.const(np.float32(2))),
    "whole numbers": lambda x: op.astype(x, "int32"),
    "comparison of whole numbers": lambda x: op.equal(op.astype(x, "int32"), relax.const(np.int32(1))),
}
TELLING: dict[str, Callable[[Any], Any]] = {
    "logarithm": lambda x: op.log(op.nn.relu(x)),
    "probabilities": lambda x: op.reshape(op.nn.softmax(x), (8, 4)),
    "probabilities, scaled": lambda x: op.multiply(op.sigmoid(x), relax.const(np.float32(100))),
    "divisor": lambda x: op.divide(x, op.sum(x, -1, keepdims=True)),
    "small divisor": lambda x: op.divide(x, relax.const(np.float32(1e-39))),
    "divisor plus little": lambda x: op.divide(x, op.add(x, relax.const(np.float32(1e-39)))),
    "root": lambda x: op.sqrt(x),
    "root of a power": lambda x: op.power(x, relax.const(np.float32(0.25))),
    "sign": lambda x: op.sign(x),
    "comparison": lambda x: op.where(op.greater(x, relax.const(np.float32(0))), x, constant(4, 8)),
    "truth": lambda x: op.astype(x, "bool"),
    "largest": lambda x: op.argmax(x, 1),
    "norm without a bound": lambda x: op.nn.layer_norm(x, constant(8), constant(8), [-1], epsilon=0.0),
}


@pytest.mark.parametrize("name", HIDING)
def test_nobody_can_tell(name: str) -> None:
    assert hides(HIDING[name])


@pytest.mark.parametrize("name", TELLING)
def test_somebody_may_tell(name: str) -> None:
    assert not hides(TELLING[name])
