"""Control flow against ONNX Runtime: an If whose condition comes at run time, loops of known length."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.frontends.onnx.test_ops import check

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'

IF = """
g (float[3,4] x, bool c) => (float[3,4] y, int64[1] n) {
    y, n = If(c) <
        then_branch = t () => (float[3,4] a, int64[1] i) { a = Relu(x)
            i = Constant<value_ints = [1]>() },
        else_branch = e () => (float[3,4] b, int64[1] j) { b = Neg(x)
            j = Constant<value_ints = [2]>() }>
}
"""

SCAN = """
g (float[5,4] x) => (float[4] s, float[5,4] y) {
    z = Constant<value_floats = [0.0, 0.0, 0.0, 0.0]>()
    s, y = Scan <num_scan_inputs = 1, body = b (float[4] a, float[4] r) => (float[4] t, float[4] u) {
        t = Add(a, r)
        u = Mul(t, r)
    }> (z, x)
}
"""


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("dims", [(), (1,)])
def test_an_if_decided_at_run_time(condition: bool, dims: tuple[int, ...]) -> None:
    text = IF.replace("bool c", f"bool[{','.join(map(str, dims))}] c") if dims else IF
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    check(onnx.parser.parse_model(HEAD + text), {"x": x, "c": np.full(dims, condition)})


def test_a_scan() -> None:
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    check(onnx.parser.parse_model(HEAD + SCAN), {"x": x})
