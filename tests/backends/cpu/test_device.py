"""What `CPU(target)` makes of a target: the right processor, its published figures, or one sentence why not."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from subtune import runtime
from subtune.backends import as_device
from subtune.backends.cpu import targets
from subtune.backends.cpu.device import CPU
from subtune.backends.cpu.processors import PROCESSORS
from subtune.cli import main
from subtune.core.errors import TargetError
from subtune.runtime import host, triples

ARM = "aarch64-linux-gnu"


@pytest.mark.parametrize(
    ("target", "name", "triple", "lanes", "registers", "threads"),
    [
        ("cortex-a72", "cortex-a72", ARM, 4, 32, 4),
        ("neoverse-v1", "neoverse-v1", ARM, 4, 32, 4),
        ("apple-m1", "apple-m1", "arm64-apple-macosx11.0", 4, 32, 4),
        ("raspberry-pi/4b-aarch64", "cortex-a72", ARM, 4, 32, 4),
        ({"mcpu": "cortex-a76", "mtriple": ARM}, "cortex-a76", ARM, 4, 32, 4),
        (f'{{"kind": "llvm", "mtriple": "{ARM}", "mcpu": "cortex-a76", "num-cores": 8}}', "cortex-a76", ARM, 4, 32, 8),
        (f'{{"mtriple": "{ARM}"}}', "", ARM, 4, 32, 4),
        (f"llvm -mtriple={ARM} -mcpu=neoverse-n1 -num-cores=2", "neoverse-n1", ARM, 4, 32, 2),
        ('{"mcpu": "haswell", "mtriple": "x86_64-linux-gnu", "num-cores": 3}', "haswell", "x86_64-linux-gnu", 8, 16, 3),
        ('{"mcpu": "nehalem", "mtriple": "x86_64-linux-gnu", "num-cores": 3}', "nehalem", "x86_64-linux-gnu", 4, 16, 3),
    ],
)
def test_targets(target: object, name: str, triple: str, lanes: int, registers: int, threads: int) -> None:
    model = CPU(target)  # type: ignore[arg-type]
    assert (model.name, model.triple, model.threads) == (name, triple, threads)
    assert (model.lanes(), model.vector_registers) == (lanes, registers)
    assert CPU(target, threads=7).threads == 7  # type: ignore[arg-type]
    assert str(model.target().attrs["mtriple"]) == triple


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("graviton9", "LLVM knows no processor 'graviton9'"),
        ("raspberry-pi/99", "no target tag"),
        ("{mcpu}", "no JSON object"),
        ('{"kind": "vulkan"}', "only the kind llvm"),
        ("riscv/sifive-u54", "x86_64 and aarch64 only"),
        ('{"mcpu": "cortex-a72", "mattr": ["+sve"]}', r"mattr \+sve is not what cortex-a72 has"),
        ('{"mcpu": "cortex-a72", "num-cores": "many"}', "num-cores must be a number"),
    ],
)
def test_bad_targets(target: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        CPU(target)


def test_a_virtual_machine_may_go_by_an_older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the processor can do beside what its name promises is used, and said in the target that is stored."""
    names = {"target.llvm_get_system_cpu": "rocketlake", "target.llvm_get_system_triple": "x86_64-linux-gnu"}
    more = {"avx512bf16", "amx-tile", "amx-bf16"}
    monkeypatch.setattr(targets, "_global", names.__getitem__)
    monkeypatch.setattr(runtime, "missing_features", lambda features: ())
    monkeypatch.setattr(runtime, "present_features", lambda features: more & set(features))
    monkeypatch.setattr(triples, "is_here", lambda triple: True)
    model = CPU("auto", threads=2)
    assert more <= set(model.features)
    assert model.has_tiles
    target = model.target()
    assert sorted(map(str, target.attrs["mattr"])) == ["+amx-bf16", "+amx-tile", "+avx512bf16"]
    assert model.fingerprint().startswith("cpu/x86_64/rocketlake+amx-bf16+amx-tile+avx512bf16/512b/")
    again = CPU(str(target))
    assert (again.features, again.fingerprint()) == (model.features, model.fingerprint())


@pytest.mark.parametrize("name", sorted(PROCESSORS))
def test_published_figures_are_used_elsewhere_and_measured_ones_here(name: str) -> None:
    model, published = CPU(name), PROCESSORS[name]
    assert (model.fma_per_cycle, model.fma_latency) == (published.fma_per_cycle, published.fma_latency)
    assert published.l1d_bytes < published.l2_bytes <= published.l3_bytes
    if model.obstacle():
        assert (model.l1d_bytes, model.l2_bytes, model.l3_bytes) == (
            published.l1d_bytes,
            published.l2_bytes,
            published.l3_bytes,
        )
        assert (model.cycles_per_s, model.threads) == (published.cycles_per_s, published.cores)
    else:
        assert model.l1d_bytes == CPU("auto").l1d_bytes


def test_this_machine_has_no_obstacle_and_others_have() -> None:
    assert CPU("auto").obstacle() == ""
    other = ARM if triples.architecture(CPU("auto").triple) == "x86_64" else "x86_64-linux-gnu"
    assert "this machine is" in CPU({"mtriple": other}).obstacle()


def test_missing_extensions_are_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "missing_features", lambda features: ("amx-tile",))
    assert CPU("auto").obstacle() == "this processor lacks amx-tile"


def test_stand_in_schedules_alike_and_runs_here() -> None:
    model = CPU("cortex-a72", threads=64)
    here = model.stand_in()
    assert here.obstacle() == ""
    assert (here.lanes(), here.vector_registers, here.l2_bytes) == (4, 32, model.l2_bytes)
    assert here.threads == host.usable_cores()


def test_a_device_file_of_the_other_machine_replaces_everything(tmp_path: Path) -> None:
    there = CPU("cortex-a76", threads=3)
    (tmp_path / "there.json").write_text(there.to_json())
    assert CPU("auto").overridden(tmp_path / "there.json") == there
    (tmp_path / "l2.json").write_text('{"l2_bytes": 262144}')
    assert there.overridden(tmp_path / "l2.json").fingerprint() == "cpu/aarch64/cortex-a76/128b/64K-256K-2048K/t3"


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device", "--target", "cortex-a72"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^peak GFLOP/s +48$", text, re.MULTILINE)
    assert "published, not measured: Arm, Cortex-A72" in text
    assert main(["device", "--target", "cortex-a72", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "cortex-a72"


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty tree in the place of /sys/devices, on a machine of four cores without a quota."""
    monkeypatch.setattr(host, "_SYSFS_DEVICES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(host, "_quota", lambda: None)
    return tmp_path


def add_core(sysfs: Path, core: int, capacity: int, caches: dict[str, str]) -> None:
    folder = sysfs / "system" / "cpu" / f"cpu{core}"
    for index, (level, size) in enumerate(caches.items()):
        cache = folder / "cache" / f"index{index}"
        cache.mkdir(parents=True)
        for name, text in {"level": level, "type": "Unified", "size": size, "coherency_line_size": "64"}.items():
            (cache / name).write_text(f"{text}\n")
    (folder / "cpu_capacity").write_text(f"{capacity}\n")


def test_small_cores_are_left_out_and_the_fast_ones_caches_count(sysfs: Path) -> None:
    for core in (0, 1):
        add_core(sysfs, core, 381, {"1": "32K", "2": "128K"})
    for core in (2, 3):
        add_core(sysfs, core, 1024, {"1": "64K", "2": "512K"})
    model = CPU("auto")
    assert model.threads == 2
    assert (model.l1d_bytes, model.l2_bytes) == (64 * 1024, 512 * 1024)
    assert model.l3_bytes == model.l2_bytes  # there is none
    assert host.usable_cores() == 4


def test_performance_cores_of_intels_hybrids(sysfs: Path) -> None:
    (sysfs / "cpu_core").mkdir()
    (sysfs / "cpu_core" / "cpus").write_text("0-2\n")
    assert CPU("auto").threads == 3


def test_equal_cores_all_count(sysfs: Path) -> None:
    for core in range(4):
        add_core(sysfs, core, 1024, {"1": "32K", "2": "1M", "3": "8M"})
    model = CPU("auto")
    assert (model.threads, model.l3_bytes) == (4, 8 * 1024 * 1024)


@pytest.mark.parametrize(("cores", "megabytes"), [(2, 32), (60, 300)])
def test_a_virtual_machines_share_of_l3(
    cores: int, megabytes: int, sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of sixty cores are told of the whole cache, which the others use as well."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    add_core(sysfs, 0, 1024, {"1": "48K", "2": "2M", "3": f"{300 * 1024}K"})
    assert CPU("auto").l3_bytes == megabytes << 20


@pytest.mark.parametrize(
    ("triple", "architecture", "system"),
    [
        ("aarch64-linux-gnu", "aarch64", "linux"),
        ("x86_64-conda-linux-gnu", "x86_64", "linux"),
        ("arm64-apple-macosx11.0", "aarch64", "darwin"),
        ("arm64-apple-darwin21.6.0", "aarch64", "darwin"),
        ("x86_64-pc-windows-msvc", "x86_64", "win32"),
        ("aarch64-none-elf", "aarch64", ""),
    ],
)
def test_triples(triple: str, architecture: str, system: str) -> None:
    assert (triples.architecture(triple), triples.system(triple)) == (architecture, system)


def test_small_models_stay_in_l3() -> None:
    """Their measurements are their own; weights that packing made large come from memory all the same."""
    model = CPU("znver4", threads=2)
    small, large = (model.for_working_set(nbytes) for nbytes in (model.l3_bytes // 2, model.l3_bytes))
    assert large == model
    assert as_device(small).scope() != as_device(model).scope()
    assert (small.fingerprint(), small.to_json()) == (model.fingerprint(), model.to_json())
    assert model.comes_from_memory(model.l3_bytes // 4)
    assert not small.comes_from_memory(model.l3_bytes // 4)
    assert small.comes_from_memory(model.l3_bytes // 2)
    assert small.past_l2_bytes < model.past_l2_bytes


def test_json_of_a_device_is_plain() -> None:
    data = json.loads(CPU("apple-m1").to_json())
    assert data["line_bytes"] == 128
    assert data["features"] == list(CPU("apple-m1").features)


def test_tile_registers_that_the_kernel_refuses_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = frozenset({"amxtile", "amxbf16", "avx2"})
    monkeypatch.setattr(host, "cpu_flags", lambda: flags)
    monkeypatch.setattr(host, "has_tile_registers", lambda: False)
    assert host.missing_features(("amx-tile", "amx-bf16", "avx2", "fma")) == ("fma", "amx-tile", "amx-bf16")
    monkeypatch.setattr(host, "has_tile_registers", lambda: True)
    assert host.missing_features(("amx-tile", "amx-bf16", "avx2", "fma")) == ("fma",)
