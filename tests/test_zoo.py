"""The model zoo, compiled as users do: outputs against ONNX Runtime, and what the artifacts say.

Every reduced model runs untuned and tuned; the tolerance is `subtune.verification.verify`'s: a maximum relative
error of 1e-4 in float32, 2e-2 in float16, where one rounding is 5e-4 already and the models are some
fifty operators deep.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

import subtune
from subtune import models
from subtune.artifact import Artifact
from subtune.core.progress import Progress
from subtune.database import Database
from subtune.driver import compile_model
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.measure import LocalMeasurer
from subtune.report.compile_report import CompileReport
from subtune.tuning.prospects import OUTRUN
from subtune.verification.verify import OutputError, output_error
from tests.whole import IS_WHOLE

FLOAT32 = 1e-4
FLOAT16 = 2e-2
BUDGETS_S = (4.0, 16.0, 240.0)
"""The first is enough for a subgraph or two; on a loaded machine timing waits for quiet, and a larger one continues."""
VARIANTS = [("unet", {"upsample": "resize"}), ("lstm", {"bidirectional": True})]
TUNED = ("bert", "lstm", "resnet18", "unet")
"""Of every kind of network one: these are tuned. All, where the whole suite is asked for."""
HALVES = ("bert", "lstm", "mobilenet_v2", "resnet18", "unet")
BATCHED = ("bert", "lstm", "mobilenet_v2")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with Database(tmp_path_factory.mktemp("database") / "zoo.db") as opened:
        yield opened


def errors(artifact: Artifact, model: onnx.ModelProto, seed: int = 1) -> list[OutputError]:
    """Every output beside ONNX Runtime's, on other inputs than the compile's own verification takes."""
    reference = onnxruntime_reference(model)
    assert reference is not None, "ONNX Runtime does not run the model"
    inputs = models.example_inputs(model, seed)
    got, expected = artifact.run(inputs), reference(inputs)
    assert set(got) == set(expected)
    return [output_error(name, got[name], expected[name]) for name in expected]


def check(artifact: Artifact, model: onnx.ModelProto, tolerance: float) -> None:
    for error in errors(artifact, model):
        assert error.max_rel <= tolerance, str(error)


def untuned(model: onnx.ModelProto, path: Path) -> Artifact:
    report = compile_model(model, path, tune=False, database=path.with_suffix(".db"), threads=2)
    assert "ONNX Runtime" in report.verified
    return subtune.load(path)


@pytest.mark.parametrize("name", models.names())
def test_untuned(name: str, tmp_path: Path) -> None:
    model = models.reduced(name)
    artifact = untuned(model, tmp_path / "m.subtune")
    check(artifact, model, FLOAT32)
    assert all(s.measured_hash == "" and s.linked_hash for s in artifact.manifest.subgraphs)


@pytest.mark.parametrize("name", models.names() if IS_WHOLE else HALVES)
def test_untuned_float16(name: str, tmp_path: Path) -> None:
    model = models.reduced(name, dtype="float16")
    check(untuned(model, tmp_path / "m.subtune"), model, FLOAT16)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_untuned_variants(name: str, options: dict[str, object], tmp_path: Path) -> None:
    model = models.reduced(name, **options)
    check(untuned(model, tmp_path / "m.subtune"), model, FLOAT32)


@pytest.mark.parametrize("name", BATCHED)
def test_untuned_batch_of_two(name: str, tmp_path: Path) -> None:
    model = models.reduced(name, batch=2)
    artifact = untuned(model, tmp_path / "m.subtune")
    assert all(spec.shape[0] == 2 for spec in artifact.outputs)
    check(artifact, model, FLOAT32)


def compile_in_part(model: onnx.ModelProto, path: Path, **options: Any) -> CompileReport:
    """Compile with a budget in which some of the subgraphs are tuned: which ones, and how many, is the machine's."""
    for budget_s in BUDGETS_S:
        report = compile_model(model, path, budget_s=budget_s, **options)
        if any(row.tuned_s for row in report.rows):
            break
    return report


@pytest.mark.parametrize("name", models.names() if IS_WHOLE else TUNED)
def test_tuned(name: str, tmp_path: Path, workers: LocalMeasurer, database: Database) -> None:
    """Within the budget some subgraphs are tuned, and what was timed is what is linked; a rebuild is the same."""
    model = models.reduced(name)
    path = tmp_path / "m.subtune"
    options = {"topk": 3, "threads": 2, "database": database, "measurer": workers}
    report = compile_in_part(model, path, **options)
    assert not report.failures
    measured = [row for row in report.rows if row.tuned_s]
    assert measured
    assert all(row.tuned_s <= row.default_s for row in measured)
    artifact = subtune.load(path, check=True)
    check(artifact, model, FLOAT32)
    proven = [s for s in artifact.manifest.subgraphs if s.measured_hash]
    assert len(proven) == len(measured)
    assert all(s.measured_hash == s.linked_hash for s in proven)

    seen: list[Progress] = []
    again = compile_model(model, path, tune=False, verify=False, progress=seen.append, **options)
    assert not seen
    if any(choice.alternatives[0].note.endswith(OUTRUN) for choice in report.choices):
        return  # a look that nobody confirmed gave it up: the database has no record of that, and a rebuild may differ
    assert again.rows == report.rows
    rebuilt = subtune.load(path).manifest
    assert [s.linked_hash for s in rebuilt.subgraphs] == [s.linked_hash for s in artifact.manifest.subgraphs]


def test_tuned_float16(tmp_path: Path, workers: LocalMeasurer, database: Database) -> None:
    model = models.reduced("resnet18", dtype="float16")
    path = tmp_path / "m.subtune"
    report = compile_in_part(model, path, topk=3, threads=2, database=database, measurer=workers)
    assert not report.failures
    assert any(row.tuned_s for row in report.rows)
    check(subtune.load(path), model, FLOAT16)


def test_a_second_compile_runs_no_candidate(tmp_path: Path, workers: LocalMeasurer, database: Database) -> None:
    model = models.reduced("mlp")
    options = {"topk": 4, "threads": 2, "database": database}
    first = compile_model(model, tmp_path / "1.subtune", measurer=workers, **options)
    assert all(row.tuned_s for row in first.rows)
    seen: list[Progress] = []
    # no measurer given: if a candidate had to run, this would start processes and report progress
    second = compile_model(model, tmp_path / "2.subtune", progress=seen.append, **options)
    assert not seen
    assert second.rows == first.rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"] if IS_WHOLE else ["mobilenet_v2"])
def test_full_size_untuned(name: str, tmp_path: Path) -> None:
    model = models.build(name)
    check(untuned(model, tmp_path / "m.subtune"), model, FLOAT32)
