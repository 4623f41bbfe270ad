"""A model of one node, run by ONNX Runtime and by subtune."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from subtune.integrations.onnx_backend import SubtuneBackend

RNG = np.random.default_rng(11)
F = np.float32
BYTES = [np.uint8, np.int8]


def has_fma() -> bool:
    info = Path("/proc/cpuinfo")
    return platform.machine() == "x86_64" and info.exists() and " fma " in info.read_text()


NEAR = 0 if has_fma() else 1
"""Steps that a result may be off: ONNX Runtime's kernels for other processors round differently."""


def every(of: Any) -> np.ndarray:
    limits = np.iinfo(of)
    return np.arange(limits.min, limits.max + 1).astype(of)


def some(of: Any, *dims: int) -> np.ndarray:
    limits = np.iinfo(of)
    return RNG.integers(limits.min, limits.max + 1, dims).astype(of)


def point(of: Any) -> np.ndarray:
    return some(of).astype(of)


def model_of(
    op: str,
    inputs: Sequence[Any],
    run: tuple[int, ...] = (0,),
    domain: str = "com.microsoft",
    opset: int = 18,
    node: dict[str, Any] | None = None,
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """One node; the inputs `run` are fed, the others are initialisers, None is omitted.

    `node` are attributes, too, which may be named as an argument is.
    """
    arrays = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    names = [f"x{i}" if f"x{i}" in arrays else "" for i in range(len(inputs))]
    feeds = {f"x{i}": arrays[f"x{i}"] for i in run}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    held = [numpy_helper.from_array(x, n) for n, x in arrays.items() if n not in feeds]
    proto = helper.make_node(op, names, ["y"], name="node", domain=domain, **attrs, **(node or {}))
    graph = helper.make_graph([proto], "g", infos, [helper.make_empty_tensor_value_info("y")], held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def ours(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The one output; a refusal, which the official suite would skip, fails."""
    try:
        (got,) = SubtuneBackend.prepare(model).run(feeds)
    except BackendIsNotSupposedToImplementIt as e:
        pytest.fail(str(e))
    return got


def both(*args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
    model, feeds = model_of(*args, **kwargs)
    (wanted,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    got = ours(model, feeds)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    return got, wanted


def check(*args: Any, off: int = NEAR, **kwargs: Any) -> None:
    """At most `off` steps from ONNX Runtime, and that rarely."""
    got, wanted = both(*args, **kwargs)
    apart = np.abs(got.astype(int) - wanted.astype(int))
    assert apart.max() <= off
    assert (apart > 0).mean() <= 0.02
