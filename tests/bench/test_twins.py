"""The zoo's PyTorch twins compute what its files say; which file has one; a user's own module."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from subtune import models
from subtune.bench.job import BenchError, Job
from subtune.bench.peers import AGREEMENT
from subtune.bench.race import write_inputs
from subtune.bench.torch_agreement import disagreement, require_function
from subtune.bench.torch_source import is_converted
from subtune.bench.twins import load
from subtune.bench.twins.load import model_of
from subtune.cli.main import main

VARIANTS = [
    *((name, {}) for name in models.names()),
    ("unet", {"upsample": "resize"}),
    ("lstm", {"bidirectional": True}),
]


def saved(model: onnx.ModelProto, path: Path) -> Job:
    """The model as a file, and a job on its example inputs."""
    onnx.save(model, path)
    inputs = models.example_inputs(model)
    dtypes = tuple(array.dtype.name for array in inputs.values())
    return Job(
        AGREEMENT, str(path), 1, write_inputs(path.with_suffix(".npz"), list(inputs.values())), tuple(inputs), dtypes
    )


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_twin_agrees_with_its_file(name: str, options: dict[str, object], dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from subtune.bench.torch_agreement import agreement

    job = saved(models.reduced(name, batch=2, dtype=dtype, **options), tmp_path / "m.onnx")
    with np.load(job.inputs) as stored:
        inputs = {key: stored[f"arr_{index}"] for index, key in enumerate(job.names)}
    agreement(job, inputs)  # raises where the difference is over 1e-4 of the scale, in half 2e-2


def test_a_twin_of_other_weights_is_not_raced(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    model = models.reduced("mlp")
    model.graph.node.insert(len(model.graph.node) - 1, onnx.helper.make_node("Neg", ["relu_4_0"], ["turned"]))
    last = model.graph.node[-1]
    model.graph.node[-2].input[0] = last.input[0]
    last.input[0] = "turned"
    assert "off the ONNX file's" in disagreement(saved(model, tmp_path / "m.onnx"), 100)


def test_the_metadata_says_the_model_and_all_arguments(tmp_path: Path) -> None:
    job = saved(models.reduced("unet", upsample="resize"), tmp_path / "m.onnx")
    found = model_of(job.path)
    assert found is not None
    name, arguments = found
    assert name == "unet"
    assert arguments["upsample"] == "resize"
    assert models.build(name, **arguments) == onnx.load(job.path)
    assert not is_converted(job)


def test_a_file_of_anybody_else_is_converted(tmp_path: Path) -> None:
    model = models.reduced("mlp")
    del model.metadata_props[:]
    assert is_converted(saved(model, tmp_path / "m.onnx"))


def test_every_model_has_a_twin() -> None:
    folder = Path(load.__file__).parent
    twins = {path.stem for path in folder.glob("*.py")} - {"__init__", "load", "weights"}
    assert twins == set(models.names())


@pytest.mark.parametrize("named", ["nothing", "a.b:", ":f", "a b:f", "a:f.g"])
def test_torch_takes_a_function_by_its_name(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "zoo:mlp", "--torch", named]) == 2
    assert "is not of the form package.module:function" in capsys.readouterr().err


def test_torch_is_for_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", "cpu", "--torch", "a:f"]) == 2
    assert "not for a suite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("mine:good", ""),
        ("mine:absent", "cannot be imported"),
        ("nowhere:good", "No module named 'nowhere'"),
        ("mine:text", "gave a str, not a torch.nn.Module"),
        ("mine:broken", "raised ZeroDivisionError"),
        ("mine:number", "is no function"),
    ],
)
def test_a_function_that_gives_no_module(named: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    lines = [
        "import torch",
        "number = 3",
        "def good(): return torch.nn.Identity()",
        "def text(): return 'text'",
        "def broken(): return 1 / 0",
    ]
    (tmp_path / "mine.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    if not why:
        require_function(named)
        return
    with pytest.raises(BenchError, match=why):
        require_function(named)
