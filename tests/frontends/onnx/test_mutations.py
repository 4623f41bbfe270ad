"""Damaged models: the right results, or one sentence; never another exception, never a wrong number.

`SUBTUNE_MUTATIONS=5000` tries as many instead of a few dozen; `SUBTUNE_MUTATIONS_SEED` chooses others.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from subtune.artifact.random_inputs import random_inputs
from subtune.core.errors import ModelError, SubtuneError
from subtune.frontends import Imported, load
from subtune.integrations.onnx_backend import _build
from subtune.verification.verify import output_error
from tests.frontends.onnx.mutate import corpus, mutated
from tests.frontends.onnx.test_ops import floats, node_model

COUNT = int(os.environ.get("SUBTUNE_MUTATIONS", "60"))
SEED = int(os.environ.get("SUBTUNE_MUTATIONS_SEED", "0"))
PARTS = 12
MAX_ELEMENTS = 1 << 16

MODELS = corpus()
INDICES = {f"x{i}": 2 for i in range(6)} | {"i": 5, "k": 5}
"""Bounds of integer inputs, most of which index something."""


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_models(part: int) -> None:
    for index in range(part, COUNT, PARTS):
        rng = random.Random(f"{SEED}/{index}")
        name = rng.choice(sorted(MODELS))
        model = mutated(MODELS[name], rng)
        complaint = verdict(model, index)
        assert not complaint, f"{name}, mutation {SEED}/{index}: {complaint}\n{onnx.printer.to_text(model)[:3000]}"


def verdict(model: onnx.ModelProto, seed: int) -> str:
    """What is wrong with how a model is treated; "" where nothing is."""
    try:
        imported = load(model)
        results = _run(imported, seed)
    except SubtuneError as error:
        text = str(error)
        return "" if text.endswith(".") and "\n" not in text else f"no sentence: {text!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if results is None else _against_onnxruntime(model, imported, seed, results)


def _inputs(imported: Imported, seed: int) -> dict[str, np.ndarray]:
    return random_inputs(imported.inputs, seed, {spec.name: INDICES.get(spec.name, 3) for spec in imported.inputs})


def _run(imported: Imported, seed: int) -> list[np.ndarray] | None:
    """The outputs; None for a model too large to run, or with nothing to compute."""
    sizes = [np.prod(spec.shape, dtype=np.int64) for spec in (*imported.inputs, *imported.outputs)]
    if max(sizes, default=0) > MAX_ELEMENTS:
        return None
    inputs = _inputs(imported, seed)
    return _build(imported.mod)([inputs[spec.name] for spec in imported.inputs])


def _against_onnxruntime(model: onnx.ModelProto, imported: Imported, seed: int, results: list[np.ndarray]) -> str:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        expected: list[Any] = session.run(None, _inputs(imported, seed))
    except Exception:  # what ONNX Runtime cannot run is no reference
        return ""
    for spec, ours, theirs in zip(imported.outputs, results, expected, strict=True):
        if not np.isfinite(theirs).all():  # a damaged epsilon; where NaN comes from and goes is tested elsewhere
            continue
        error = output_error(spec.name, ours, np.asarray(theirs))
        if not error.is_within:
            return f"disagrees with ONNX Runtime: {error}, {ours.reshape(-1)[:6]} instead of {theirs.reshape(-1)[:6]}"
    return ""


@pytest.mark.parametrize(
    ("op", "inputs", "held", "attrs"),
    [
        ("LSTM", [floats(3, 2, 4)], {1: floats(1, 4, 12), 2: floats(1, 12, 3)}, {"hidden_size": 3}),
        ("GRU", [floats(3, 2, 4)], {1: floats(1, 9, 4), 2: floats(9, 3, 1)}, {"hidden_size": 3}),
        ("LayerNormalization", [floats(2, 3, 8)], {1: floats(3, 7)}, {}),
        ("Reshape", [floats(2, 3)], {1: np.int64([4, 2])}, {}),
        ("Pad", [floats(2, 3)], {1: np.int32([0, 1, 0, 1])}, {}),
        ("BatchNormalization", [floats(2, 3, 4)], {i: floats(3, 1) for i in range(1, 5)}, {}),
        ("ReverseSequence", [floats(4, 3)], {1: np.int64([1, 2])}, {}),
        ("ConvTranspose", [floats(1, 3, 6)], {1: floats(2, 2, 3)}, {}),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    op: str, inputs: list[np.ndarray], held: dict[int, np.ndarray], attrs: dict[str, Any]
) -> None:
    model, _ = node_model(op, inputs, 17, 1, held, **attrs)
    with pytest.raises(ModelError) as caught:
        load(model)
    text = str(caught.value)
    assert "y0" in text or op in text
    assert "\n" not in text
    assert text.endswith(".")
