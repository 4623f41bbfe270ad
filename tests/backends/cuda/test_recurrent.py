"""Recurrent layers on a GPU: what their kernels compute, and that a model's layers become calls of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as h
import onnxruntime
import pytest
from tvm.ir import IRModule
from tvm.tirx import PrimFunc

from subtune.backends.cuda.device import CUDA, CUDAModel
from subtune.backends.cuda.operators import own_operators
from subtune.core.forms import Forms
from subtune.core.kernel import Kernel
from subtune.core.numerics import Numerics
from subtune.core.workload import Workload
from subtune.frontends import load
from subtune.passes.recurrences import is_recurrence
from subtune.pipeline import normalize
from tests.backends.cuda import cuda_on_cpu

H200 = CUDA("H200")
needs_toolkit = pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype("float32")


def layer(op: str, sizes: tuple[int, int, int], lengths: list[int] | None = None, **attrs: Any) -> onnx.ModelProto:
    """Input x [steps, batch, 6]; every output of the operator."""
    steps, batch, hidden = sizes
    dirs, rows = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[op] * hidden
    arrays = {
        "w": floats(dirs, rows, 6),
        "r": floats(dirs, rows, hidden) * np.float32(min(1.0, 8 / hidden**0.5)),
        "b": floats(dirs, 2 * rows),
    }
    arrays |= {"n": np.array(lengths, "int32")} if lengths else {}
    arrays |= {"h0": floats(dirs, batch, hidden)} | ({"c0": floats(dirs, batch, hidden + 0)} if op == "LSTM" else {})
    names = ["x", "w", "r", "b", "n" if lengths else "", *(["h0", "c0"] if op == "LSTM" else ["h0"])]
    outputs = ["y", "yh", "yc"] if op == "LSTM" else ["y", "yh"]
    extra = {"linear_before_reset": 1} if op == "GRU" else {}
    node = h.make_node(op, names, outputs, hidden_size=hidden, **{**extra, **attrs})
    infos = [h.make_tensor_value_info(name, 1, None) for name in outputs]
    graph = h.make_graph([node], "g", [h.make_tensor_value_info("x", 1, [steps, batch, 6])], infos,
                         [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()])  # fmt: skip
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 14)], ir_version=8)


def whole(model: onnx.ModelProto, half: str = "") -> IRModule:
    precision = {"float16": "fp16", "": "fp32"}[half]
    forms = Forms(whole_step_fmas=1 << 27)
    return normalize(load(model).mod, Numerics(precision=precision), forms=forms)


def calls(mod: IRModule) -> list[Any]:
    bindings = [binding for block in mod["main"].body.blocks for binding in block.bindings]
    return [b.value for b in bindings if hasattr(b.value, "args") and is_recurrence(b.value)]


def values(mod: IRModule, x: np.ndarray, model: onnx.ModelProto) -> list[np.ndarray]:
    """The arguments of the layer's call, with what the input's product makes of `x`."""
    (call,) = calls(mod)
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    directions, rows, _ = arrays["w"].shape
    projected = np.concatenate(
        [x @ arrays["w"][d].T + arrays["b"][d, :rows] for d in range(directions)], axis=-1
    )  # fmt: skip
    fields = call.args[1].fields
    given = [projected, *(field.value.numpy() for field in fields[1:])]
    return [one.astype(str(field.ty.dtype)) for one, field in zip(given, fields, strict=True)]


CASES = {
    "an LSTM": ("LSTM", (4, 1, 64), None, {}),
    "both ways, ragged": ("LSTM", (3, 3, 37), None, {"direction": "bidirectional"}),
    "lengths": ("LSTM", (5, 3, 20), [5, 2, 4], {"direction": "bidirectional"}),
    "a GRU backwards": ("GRU", (3, 9, 20), [3, 1, 2, 3, 3, 3, 3, 2, 1], {"direction": "reverse"}),
    "an LSTM of many, in groups": ("LSTM", (4, 21, 72), None, {"direction": "bidirectional"}),
    "a GRU of more than a tile": ("GRU", (3, 75, 300), None, {}),
    "a wide LSTM of few": ("LSTM", (3, 2, 200), [3, 1], {"direction": "reverse"}),
    "a wide LSTM, ragged": ("LSTM", (4, 9, 150), [4, 1, 2, 3, 4, 4, 1, 2, 3], {"direction": "bidirectional"}),
    "an RNN": ("RNN", (3, 40, 18), None, {"activations": ["Relu"]}),
}


@needs_toolkit
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("half", ["", "float16"])
@pytest.mark.parametrize("device", [H200, replace(H200, sms=1)], ids=["all steps in one", "step by step"])
@pytest.mark.grid
def test_values_of_all_steps(case: str, half: str, device: CUDAModel, tmp_path: Path) -> None:
    op, sizes, lengths, attrs = CASES[case]
    model, x = layer(op, sizes, lengths, **attrs), floats(sizes[0], sizes[1], 6)
    mod = whole(model, half)
    (func,) = [func for func in own_operators(mod, device).functions.values() if isinstance(func, PrimFunc)]
    given = values(mod, x, model)
    workload = Workload.of(func, len(func.params) - len(given))
    found = cuda_on_cpu.run(Kernel(workload.func), given, workload, device, tmp_path)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for one, right in zip(found, session.run(None, {"x": x}), strict=True):
        allowed = 6e-3 if half else 4e-6
        np.testing.assert_allclose(one.astype("float32"), right, rtol=allowed, atol=allowed)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [("GRU", {"linear_before_reset": 0}), ("RNN", {"activations": ["Softsign"]})],
)
def test_other_cells_are_unrolled(op: str, attrs: dict[str, Any]) -> None:
    assert not calls(whole(layer(op, (3, 2, 8), **attrs)))


def test_long_steps_are_unrolled() -> None:
    assert calls(whole(layer("RNN", (2, 512, 512))))
    assert not calls(whole(layer("RNN", (2, 513, 512))))


def test_elsewhere_layers_are_unrolled() -> None:
    mod = normalize(load(layer("LSTM", (3, 2, 8))).mod)
    assert not calls(mod)
    assert [gvar.name_hint for gvar in mod.get_global_vars()] == ["main"]
