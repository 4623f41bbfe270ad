"""Alternatives through the whole pipeline: each computes the model, and the fastest ships."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import tvm
from tvm import relax

import subtune
from subtune import models
from subtune.artifact.random_inputs import random_inputs
from subtune.assembly import compile_module
from subtune.backends import as_device
from subtune.backends.base import Device
from subtune.backends.cpu.device import CPUModel
from subtune.cli.main import main
from subtune.core.candidate import DEFAULT
from subtune.core.graph import Alternatives
from subtune.core.measurement import Timing
from subtune.core.record import Record, func_hash
from subtune.database import Database
from subtune.driver import compile_model
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.measure import LocalMeasurer
from subtune.passes.regroup import rearrange
from subtune.passes.splice import splice
from subtune.pipeline import Prepared, prepare
from subtune.tuning import winners
from subtune.tuning.alternatives import plan, recorded_choices
from subtune.tuning.prospects import OUTRUN
from subtune.tuning.winners import schedule_kernels
from subtune.verification.verify import output_error
from tests.whole import IS_WHOLE


def others_of(prepared: Prepared) -> Alternatives:
    return prepared.alternatives()


@pytest.mark.parametrize("name", ["bert", "unet", "mobilenet_v2", *(["gpt2", "vit", "squeezenet"] if IS_WHOLE else [])])
def test_every_way_of_every_region_computes_the_model(name: str, device: CPUModel) -> None:
    """Alternative i of all regions at once, as many as there are, but each set of kernels once; default schedules."""
    model = models.reduced(name)
    prepared = prepare(model)
    others = others_of(prepared)
    assert others.regions
    assert not [one.refusal for region in others.regions for one in region.alternatives if one.refusal]
    reference = onnxruntime_reference(model)
    assert reference is not None
    inputs = random_inputs(prepared.imported.inputs, 0)
    expected = reference(inputs)
    untried = {subgraph.workload.key for subgraph in others.subgraphs}
    while untried:
        chosen = []
        for region in others.regions:
            best = max(region.alternatives, key=lambda alternative: len(untried & set(alternative.keys)))
            chosen.append(best.alternative)
        changed = prepared.arranged(rearrange(prepared.graph, chosen))
        tried = untried & {subgraph.workload.key for subgraph in changed.subgraphs}
        assert tried, "an alternative's workload is not in the module outlined with it"
        untried -= tried
        mod = splice(changed.mod, schedule_kernels(changed.subgraphs, {}, device))
        vm = relax.VirtualMachine(compile_module(mod, device)[0], tvm.cpu())
        result = vm["main"](*(tvm.runtime.tensor(inputs[spec.name]) for spec in prepared.imported.inputs))
        arrays = [result] if hasattr(result, "numpy") else list(result)
        for spec, array in zip(prepared.imported.outputs, arrays, strict=True):
            assert output_error(spec.name, array.numpy(), expected[spec.name]).is_within


@pytest.mark.parametrize("name", ["resnet18", "vgg16"])
def test_of_plain_convolutions_only_the_first_has_another_way(name: str) -> None:
    """It may read the image as it comes."""
    (other,) = others_of(prepare(models.reduced(name))).subgraphs
    assert other.ops[:2] == ("permute_dims", "nn.conv2d")


# -- from measurement to model -----------------------------------------------------------------------------


def fake(workload: Any, device: Device, seconds: float) -> Record:
    """As if the default schedule had been measured: it is linked only if the hash is that of its kernel."""
    kernel = winners.applied(workload, DEFAULT, device)
    timing = Timing(seconds, seconds, 0.0, 9)
    return Record(
        workload.key, device.scope().device, DEFAULT, timing, timing, 1.0, func_hash(kernel.func), 20, 1, 0, True
    )


@pytest.fixture(scope="module")
def squeezenet() -> onnx.ModelProto:
    return models.reduced("squeezenet")


def fill(path: Path, model: onnx.ModelProto, device: CPUModel) -> Path:
    """A database in which every kernel takes 1 ms: fewer kernels win."""
    prepared = prepare(model)
    tuned_for = as_device(device).for_working_set(prepared.working_set_bytes)
    with Database(path) as database:
        for subgraph in (*prepared.subgraphs, *others_of(prepared).subgraphs):
            database.add_record(
                subgraph.workload, fake(subgraph.workload, tuned_for, 1e-3), tuned_for.backend.versions()
            )
    return path


@pytest.mark.parametrize("name", ["squeezenet", "bert"])
def test_the_fastest_ways_are_what_ships(name: str, device: CPUModel, tmp_path: Path) -> None:
    model = models.reduced(name)
    options: dict[str, Any] = {"database": fill(tmp_path / "t.db", model, device), "tune": False, "threads": 2}
    report = compile_model(model, tmp_path / "m.subtune", **options)
    assert report.choices
    for choice in report.choices:
        assert len(choice.chosen.kernels) == min(len(one.kernels) for one in choice.alternatives)
        before, after = (len(one.kernels) for one in (choice.alternatives[0], choice.chosen))
        between_s = device.between_kernels_s
        assert choice.gain == pytest.approx(
            (before * (1e-3 + between_s) - between_s) / (after * (1e-3 + between_s) - between_s)
        )
    assert {row.tuned_s for row in report.rows} == {1e-3}
    assert "agrees with ONNX Runtime" in report.verified
    kernels = subtune.load(tmp_path / "m.subtune").manifest.subgraphs
    assert {kernel.name for kernel in kernels} == {row.name for row in report.rows}
    assert all(kernel.measured_hash == kernel.linked_hash != "" for kernel in kernels)
    own = {subgraph.name for subgraph in prepare(model).subgraphs}
    assert {row.name for row in report.rows} - own


def test_an_empty_database_leaves_the_partition(squeezenet: onnx.ModelProto, tmp_path: Path) -> None:
    report = compile_model(squeezenet, tmp_path / "m.subtune", database=tmp_path / "e.db", tune=False, verify=False)
    assert report.choices
    assert not any(choice.taken for choice in report.choices)
    assert {row.name for row in report.rows} == {subgraph.name for subgraph in prepare(squeezenet).subgraphs}


def test_inspect_shows_what_the_database_says(
    squeezenet: onnx.ModelProto, device: CPUModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(squeezenet, tmp_path / "s.onnx")
    command = ["inspect", str(tmp_path / "s.onnx"), "--threads", "2", "--db"]
    assert main([*command, str(fill(tmp_path / "t.db", squeezenet, device))]) == 0
    text = capsys.readouterr().out
    assert "another than the partition's is taken in" in text
    assert "> no copy" in text
    assert "reads what concat_1 would copy" in text
    assert main([*command, str(tmp_path / "none.db"), "--json"]) == 0
    regions = json.loads(capsys.readouterr().out)["regions"]
    assert regions
    assert all(region["taken"] == 0 and not region["alternatives"][1]["seconds"] for region in regions)


def test_what_no_policy_foresees_is_not_measured(
    squeezenet: onnx.ModelProto, device: CPUModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(squeezenet)
    others = others_of(prepared)
    broken = others.subgraphs[0].workload.key

    def partial(workload: Any, device: Any, topk: int = 20) -> Any:
        if workload.key == broken:
            raise IndexError("a case it does not foresee")
        return (DEFAULT,)

    monkeypatch.setattr("subtune.backends.candidates", partial)
    planned = plan(prepared.subgraphs, others, as_device(device), None)
    assert [one.workload.key for one in planned.later] == [s.workload.key for s in others.subgraphs[1:]]
    assert planned.reasons == {broken: "no template schedules it"}
    choices = recorded_choices(others, prepared.subgraphs, device, None)
    assert any("no template schedules it" in one.note for choice in choices for one in choice.alternatives)


# -- for real ----------------------------------------------------------------------------------------------


PRODUCT = """<ir_version: 8, opset_import: ["" : 17]>
product (float[96, 64] x, float[64, 128] y) => (float[96, 128] z) { z = MatMul(x, y) }"""


@pytest.mark.parametrize("name", ["bert", "product"])
def test_a_model_with_and_one_without_regions_end_to_end(name: str, workers: LocalMeasurer, tmp_path: Path) -> None:
    options: dict[str, Any] = {"topk": 1, "threads": 2, "database": tmp_path / "t.db", "measurer": workers}
    model = models.reduced("bert", layers=1) if name == "bert" else onnx.parser.parse_model(PRODUCT)
    report = compile_model(model, tmp_path / "m.subtune", **options)
    assert "agrees with ONNX Runtime" in report.verified
    assert not report.failures
    assert all(row.tuned_s for row in report.rows)
    assert bool(report.choices) == (name == "bert")
    for own in (choice.alternatives[0] for choice in report.choices if not choice.alternatives[0].seconds):
        assert own.note.endswith(OUTRUN), "the partition's own is measured, or cannot win"
    seen: list[Any] = []
    again = compile_model(model, tmp_path / "m.subtune", **options, progress=seen.append)
    assert not seen, "the database holds the alternatives as well"
    assert again.choices == report.choices
    assert again.rows == report.rows


def test_a_short_budget_goes_to_what_is_expected_to_be_fastest(
    tmp_path: Path, device: CPUModel, workers: LocalMeasurer
) -> None:
    seen: list[str] = []
    model = models.reduced("squeezenet")

    def stop(progress: Any) -> None:
        seen.append(progress.workload_key)
        if progress.done == 3:
            raise KeyboardInterrupt

    prepared = prepare(model)
    planned = plan(prepared.subgraphs, others_of(prepared), as_device(device), None)
    first = {one.workload.key for one in planned.first}
    assert first - {subgraph.workload.key for subgraph in prepared.subgraphs}, "no region has a favourite"
    report = compile_model(
        model, tmp_path / "m.subtune", topk=1, threads=2, database=tmp_path / "t.db", measurer=workers, progress=stop,
        verify=False,
    )  # fmt: skip
    assert report.is_interrupted
    assert set(seen) <= first
    for choice in report.choices:
        assert bool(choice.taken) == bool(choice.chosen.seconds and not choice.alternatives[0].seconds)
