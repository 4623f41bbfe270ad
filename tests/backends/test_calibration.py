"""Measured figures as data: stored, found again, put in a model's fields; what is no such file is one sentence."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import platformdirs
import pytest

from subtune.backends.calibration import (
    calibrated,
    calibration_path,
    found_today,
    overridden,
    read_calibration,
    write_calibration,
)
from subtune.backends.cpu.calibration import CostFigures, figures_of
from subtune.backends.cpu.device import CPU
from subtune.backends.cpu.timing import calibrate as cpu
from subtune.backends.cuda.device import CUDA
from subtune.cli import main
from subtune.core.errors import TargetError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_shipped_figures_have_a_day_and_a_way():
    folder = Path(cpu.__file__).parents[1] / "calibration"
    names = {field.name for field in fields(CostFigures)}
    for path in folder.glob("*.json"):
        found = read_calibration(path)
        assert found.machine
        assert set(found.figures) <= names
        for figure in found.figures.values():
            assert figure.how
            assert len(figure.date.split("-")) == 3
    assert set(read_calibration(folder / "default.json").figures) == names
    assert figures_of("znver5") == figures_of("a processor that nobody measured")


def test_stored_figures_are_found_by_the_same_device_only(cache):
    model = CPU("auto", 1)
    path = calibration_path(model.fingerprint())
    assert path.is_relative_to(cache)
    found = found_today("here", {"dram_bytes_per_s": (1.25e9, "a"), "far_cycles": (3.5, "b"), "of_later": (1.0, "c")})
    write_calibration(found, path)
    again = CPU("auto", 1)
    assert again == replace(model, dram_bytes_per_s=1.25e9, calibration=replace(model.calibration, far_cycles=3.5))
    assert str(path) in again.source
    assert CPU("cortex-a72").dram_bytes_per_s == 4e9
    assert read_calibration(path) == found


def test_a_calibration_is_a_device_description(tmp_path):
    path = tmp_path / "c.json"
    write_calibration(found_today("there", {"l2_bytes_per_s": (1e12, ""), "launch_s": (2e-6, "")}), path)
    gpu = CUDA("H100")
    assert gpu.overridden(path) == replace(gpu, l2_bytes_per_s=1e12, launch_s=2e-6)
    assert calibrated(gpu, "no such device") == gpu


def test_every_field_can_be_overridden(tmp_path):
    for model, other in ((CPU("cortex-a76"), CPU("apple-m1")), (CUDA("H100"), CUDA("L4"))):
        (tmp_path / "other.json").write_text(other.to_json())
        assert overridden(model, tmp_path / "other.json") == other


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a JSON object"),
        ("{", "cannot read"),
        ('{"figures": {"far_cycles": 3}, "machine": "m"}', "a figure needs"),
        ('{"figures": {"far_cycles": {"value": "x", "how": "", "date": ""}}, "machine": "m"}', "a figure needs"),
        ('{"figures": {"far_cycles": {"value": -1, "how": "", "date": ""}}, "machine": "m"}', "a figure needs"),
        ('{"figures": {}}', "a figure needs"),
        ("{}", "a figure needs"),
    ],
)
def test_a_bad_calibration_is_one_sentence(cache, text, words):
    path = calibration_path(CPU("auto", 1).fingerprint())
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(TargetError, match=words) as e:
        CPU("auto", 1)
    assert str(path) in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"l2_bytes": 1.5}, "l2_bytes must be a positive whole number, not 1.5"),
        ({"l2_bytes": True}, "positive whole number"),
        ({"cycles_per_s": 0}, "positive number"),
        ({"features": "avx2"}, "a list of texts"),
        ({"calibration": 3}, "an object of fields"),
        ({"calibration": {"far": 3}}, "unknown fields far"),
        ({"cores": 3}, "unknown fields cores"),
    ],
)
def test_a_bad_description_is_one_sentence(tmp_path, data, words):
    (tmp_path / "d.json").write_text(json.dumps(data))
    with pytest.raises(TargetError, match=words):
        CPU("cortex-a72").overridden(tmp_path / "d.json")


def test_the_fit_finds_the_machine_that_the_samples_are_of():
    device = replace(CPU("znver4", 2), l2_bytes=1 << 20, l3_bytes=32 << 20)  # those of this machine, where it says none
    plan = cpu.plan_for(device)
    clock, start = 3e9, 1.5e-6
    straight = plan.rows * 17 * 256 / (20 * clock)
    samples = cpu.Samples(
        chain=plan.steps * device.fma_latency / clock,
        chains=plan.chains * plan.steps / 2 / clock,
        l2=(16 << 20) / (40 * clock),
        l3=(16 << 20) / (20 * clock),
        memory=plan.memory_bytes / 25e9,
        along_rows=straight,
        down_columns=straight + plan.rows * 17 * 9 / clock,
        shared_out=1e-6 + start,
        alone=1e-6,
    )
    found = {name: value for name, (value, _) in cpu.fit(plan, samples, device).items()}
    assert found == pytest.approx(
        {
            "cycles_per_s": clock,
            "fma_per_cycle": 2,
            "dram_bytes_per_s": 50e9,
            "l2_bytes_per_cycle": 40,
            "l3_bytes_per_cycle": 20,
            "parallel_start_s": start,
            "far_cycles": 9,
        },
        rel=0.01,
    )


def test_the_probes_do_what_they_are_said_to():
    device = CPU("auto", 1)
    assert cpu.plan_for(replace(device, l3_bytes=device.l2_bytes)).l3_bytes == 0
    for call in (cpu.multiply_adds(device, 2, 2, 8), cpu.reads(device, 2, 4, 3, 2, rows_first=False)):
        call()
    cpu.increments(device, is_parallel=True)()


def test_the_command_measures_stores_and_says_what_stays(cache, tmp_path, monkeypatch, capsys):
    fit = {"l3_bytes_per_cycle": (20.0, "by a test"), "fma_per_cycle": (2, "by a test")}
    monkeypatch.setattr(cpu, "calibrate", lambda device: found_today(device.description, fit))
    assert main(["device", "--calibrate", "--threads", "1", "-o", str(tmp_path / "mine.json")]) == 0
    text = capsys.readouterr().out
    assert "by a test" in text
    assert f"kept in {tmp_path / 'mine.json'}" in text
    kept = text.split("as shipped: ")[1]
    assert "far_cycles" in kept
    assert "l3_bytes_per_cycle" not in kept
    assert not cache.exists()
    assert main(["device", "--device", str(tmp_path / "mine.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calibration"]["l3_bytes_per_cycle"] == 20.0
    assert main(["device", "--calibrate", "--threads", "1"]) == 0
    assert CPU("auto", 1).calibration.l3_bytes_per_cycle == 20.0
    assert main(["device", "--calibrate", "--target", "cortex-a72"]) == 2
    assert "cannot be calibrated: this" in capsys.readouterr().err
    assert main(["device", "-o", "x.json"]) == 2
