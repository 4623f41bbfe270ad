"""Relay modules with `?` compiled for many shapes and run at each of them, against numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subtune.artifact import Artifact, load
from subtune.core.errors import InputError, UnsupportedOpsError
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from tests.dynamic import relay_models as models
from tests.whole import IS_WHOLE


@pytest.fixture(scope="module")
def measurer() -> Iterator[LocalMeasurer]:
    with LocalMeasurer() as own:
        yield own


def compiled(measurer: LocalMeasurer, model: str, folder: Path, **options: Any) -> Artifact:
    path, options = folder / "m.subtune", {"tune": False, "verify": False, "threads": 1, **options}
    compile_model(model, path, measurer=measurer, **options)
    return load(path)


def arrays(artifact: Artifact, values: Mapping[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(sum(values.values()))
    return {one.name: rng.standard_normal(one.at(values).sizes).astype(np.float32) for one in artifact.inputs}


def check_everywhere(artifact: Artifact, function: Callable[..., Any]) -> int:
    """How many instances there were."""
    assert artifact.manifest.domain
    count = 0
    for values, _ in artifact.manifest.domain.instances():
        inputs = arrays(artifact, values)
        expected = function(*inputs.values())
        found = artifact.run(inputs).values()
        for output, wanted in zip(found, expected if isinstance(expected, tuple) else (expected,), strict=True):
            assert output.shape == wanted.shape, values
            np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5, err_msg=str(values))
        count += 1
    return count


def test_a_dense_network_of_json(measurer: LocalMeasurer, tmp_path: Path) -> None:
    options = {"params": models.DENSE, "dynamic": {"x.0": "1..13"}}
    artifact = compiled(measurer, models.dense_document(), tmp_path, **options)
    assert [str(one) for one in (*artifact.inputs, *artifact.outputs)] == [
        "x: float32[x.0, 16]",
        "output: float32[x.0, 10]",
    ]
    assert check_everywhere(artifact, models.dense) == 13
    with pytest.raises(InputError, match=r"x\.0 is 14, and the model was compiled for x\.0=1\.\.13"):
        artifact.run(arrays(artifact, {"x.0": 14}))


def test_images(measurer: LocalMeasurer, tmp_path: Path) -> None:
    options = {"params": models.IMAGE_WEIGHTS, "dynamic": {"data.0": range(1, 9)}}
    assert check_everywhere(compiled(measurer, models.IMAGES, tmp_path, **options), models.images) == 8


@pytest.mark.skipif(not IS_WHOLE, reason="takes long; of ONNX it is always tested")
def test_an_attention_of_any_batch_and_length(measurer: LocalMeasurer, tmp_path: Path) -> None:
    """The second input has `?` of its own, which are declared to be those of the first."""
    dynamic = {"x.0": "1..3", "x.1": "1..13", "rest.0": "x.0", "rest.1": "x.1"}
    artifact = compiled(measurer, models.BLOCK, tmp_path, params=models.BLOCK_WEIGHTS, dynamic=dynamic)
    assert [str(one) for one in artifact.inputs] == ["x: float32[x.0, x.1, 32]", "rest: float32[x.0, x.1, 32]"]
    assert [str(one) for one in artifact.outputs] == ["output: float32[x.0, x.1, 32]"]
    assert check_everywhere(artifact, models.block) == 39
    inputs = {"x": arrays(artifact, {"x.0": 2, "x.1": 5})["x"], "rest": arrays(artifact, {"x.0": 2, "x.1": 6})["rest"]}
    with pytest.raises(InputError, match="rest"):
        artifact.run(inputs)


def test_what_is_computed_of_sizes(measurer: LocalMeasurer, tmp_path: Path) -> None:
    options = {"dynamic": {"x.0": "2..13"}, "inputs": ("x", "row")}
    artifact = compiled(measurer, models.SIZES, tmp_path, **options)
    assert [str(one) for one in artifact.outputs][2] == "output_2: float32[x.0 - 1, 5]"
    assert check_everywhere(artifact, models.sizes) == 12


def test_sizes_that_must_be_equal_are_to_be_declared_so(measurer: LocalMeasurer, tmp_path: Path) -> None:
    text = "def @main(%x: Tensor[(?, 4), float32], %y: Tensor[(?, 4), float32]) {\n  add(%x, %y)\n}"
    with pytest.raises(UnsupportedOpsError, match=r"cannot broadcast .* equal, say so: --dynamic y\.0=x\.0"):
        compiled(measurer, text, tmp_path, dynamic={"x.0": "1..4", "y.0": "1..4"})
