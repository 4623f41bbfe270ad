"""Models for a machine that is not here: predicted kernels, cross linkers, artifacts that know where they belong."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest

from subtune import models
from subtune.artifact import load
from subtune.artifact.manifest import read
from subtune.backends import as_device, device_of
from subtune.backends.cpu.device import CPU
from subtune.backends.host import link
from subtune.cli import main
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import ArtifactError, TargetError, VerificationError
from subtune.core.measurement import Timing
from subtune.core.record import Record, func_hash
from subtune.database import Database
from subtune.driver import compile_model
from subtune.pipeline import prepare
from subtune.runtime import triples
from subtune.tuning.predict import predict
from subtune.tuning.winners import schedule_kernels

FOREIGN = "cortex-a72" if triples.architecture(CPU("auto").triple) == "x86_64" else "haswell"
TRIPLE = CPU(FOREIGN).triple
MACHINE_OF_ELF = {"x86_64": 62, "aarch64": 183}


def has_linker(triple: str) -> bool:
    try:
        link.link_command(triple)
    except ArtifactError:
        return False
    return True


needs_linker = pytest.mark.skipif(
    not has_linker(TRIPLE), reason=f"no linker for {TRIPLE}: install lld or gcc-aarch64-linux-gnu"
)


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def artifact(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cross")
    compile_model(small_model, folder / "m.subtune", target=FOREIGN, threads=2, database=folder / "t.db")
    return folder / "m.subtune"


@needs_linker
class TestCompile:
    def test_kernels_are_predicted_and_the_manifest_says_so(self, artifact: Path) -> None:
        manifest = read(artifact)
        assert (manifest.triple, manifest.threads) == (TRIPLE, 2)
        assert manifest.device == CPU(FOREIGN, 2).fingerprint()
        kernels = [entry for entry in manifest.subgraphs if entry.workload]
        assert kernels
        for entry in kernels:
            assert entry.basis == "predicted, not measured"
            assert (entry.measured_hash, entry.tuned_s) == ("", 0.0)
            assert entry.candidate != str(DEFAULT)
        assert not [path for path in artifact.iterdir() if path.is_dir()]  # the build for this machine is gone

    def test_the_library_is_for_the_other_machine(self, artifact: Path) -> None:
        header = (artifact / "model.so").read_bytes()[:20]
        assert header[:4] == b"\x7fELF"
        assert int.from_bytes(header[18:20], "little") == MACHINE_OF_ELF[triples.architecture(TRIPLE)]

    def test_loading_it_here_is_refused_in_one_sentence(self, artifact: Path) -> None:
        with pytest.raises(ArtifactError, match=f"compiled for {TRIPLE} .*, this machine is {triples.here()}; run it"):
            load(artifact)

    def test_loading_it_there_passes_that_check(self, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(triples.platform, "machine", lambda: triples.architecture(TRIPLE))
        with pytest.raises(ArtifactError, match=r"model\.so cannot be loaded|which this processor lacks"):
            load(artifact)

    def test_report(self, small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        where = ["-o", str(tmp_path / "m.subtune"), "--db", str(tmp_path / "t.db")]
        assert main(["compile", str(small_model), "--target", FOREIGN, *where]) == 0
        text = capsys.readouterr().out
        assert f"for {FOREIGN} {TRIPLE} with 4 threads (this machine is {triples.here()}): " in text
        assert text.count("predicted, not measured") >= 2
        assert re.search(r"agrees with .*, the same kernels built for this machine", text)
        assert main(["compile", str(small_model), "--target", FOREIGN, "--json", *where]) == 0
        report = json.loads(capsys.readouterr().out)
        assert all(row["predicted_s"] > 0 and row["tuned_s"] == 0 for row in report["rows"])

    def test_records_of_the_other_machine_are_used(self, small_model: Path, tmp_path: Path) -> None:
        """A database that was tuned there: its winner ships, and counts as measured."""
        device = CPU(FOREIGN, threads=2)
        prepared = prepare(small_model)
        guesses = predict(prepared.subgraphs, device)
        subgraph = prepared.subgraphs[0]
        winner = Candidate(guesses[subgraph.workload.key].family, guesses[subgraph.workload.key].knobs)
        kernel = schedule_kernels([subgraph], {subgraph.workload.key: winner}, device)[subgraph.name]
        timing = Timing(1e-6, 1e-6, 1e-7, 10)
        record = Record(
            subgraph.workload.key,
            as_device(device).for_working_set(prepared.working_set_bytes).scope().device,
            winner,
            timing,
            timing,
            1.5,
            func_hash(kernel.func),
            20,
            1,
            0,
            True,
        )
        with Database(tmp_path / "t.db") as database:
            database.add_record(subgraph.workload, record, as_device(device).backend.versions())
        compile_model(small_model, tmp_path / "m.subtune", target=FOREIGN, threads=2, database=tmp_path / "t.db")
        bases = {entry.name: entry.basis for entry in read(tmp_path / "m.subtune").subgraphs if entry.workload}
        assert bases.pop(subgraph.name) == "measured"
        assert set(bases.values()) == {"predicted, not measured"}

    def test_no_tune_takes_default_schedules(self, small_model: Path, tmp_path: Path) -> None:
        compile_model(small_model, tmp_path / "m.subtune", target=FOREIGN, tune=False, database=tmp_path / "t.db")
        kernels = [entry for entry in read(tmp_path / "m.subtune").subgraphs if entry.workload]
        assert {(entry.candidate, entry.basis) for entry in kernels} == {(str(DEFAULT), "")}

    def test_wrong_kernels_are_refused(
        self, small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kernels are compared with the reference on this machine, though built for the other one."""
        from subtune.frontends.onnx import reference

        def wrong(source: object, threads: int, weights: object = None, of_float8: bool | None = None) -> object:
            return lambda arrays: {"y": np.full((4, 16), 7.0, "float32"), "s": np.zeros(4, "float32")}

        monkeypatch.setattr(reference, "onnxruntime_reference", wrong)
        with pytest.raises(VerificationError):
            compile_model(small_model, tmp_path / "m.subtune", target=FOREIGN, database=tmp_path / "t.db")
        assert not (tmp_path / "m.subtune").exists()


def test_a_candidate_that_does_not_build_gives_way_to_the_next(
    small_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from subtune import backends

    subgraphs = prepare(small_model).subgraphs[:1]
    (good,) = predict(subgraphs, CPU(FOREIGN)).values()
    real = backends.candidates

    def with_bad_ones(*args: object) -> tuple[Candidate, ...]:
        return (Candidate("magic"), Candidate.make("contraction", mr=3), *real(*args))  # type: ignore[arg-type]

    monkeypatch.setattr(backends, "candidates", with_bad_ones)
    assert list(predict(subgraphs, CPU(FOREIGN)).values()) == [good]
    monkeypatch.setattr(backends, "candidates", lambda *args: (Candidate("magic"),))
    assert predict(subgraphs, CPU(FOREIGN)) == {}
    assert predict(subgraphs, CPU(FOREIGN), known={subgraphs[0].workload.key}) == {}


def test_what_measures_refuses_the_other_machine() -> None:
    with pytest.raises(TargetError, match=r"this machine is .*, and kernels are timed where they are built"):
        device_of(FOREIGN)


class TestLink:
    @pytest.fixture(autouse=True)
    def _no_tools(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in ("CC", "CXX"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))

    def other_triple(self, system: str = "linux-gnu") -> str:
        return f"{triples.architecture(TRIPLE)}-{system}"

    def test_none(self, small_model: Path, tmp_path: Path) -> None:
        message = rf"no linker for {TRIPLE} found: install .*-linux-gnu-gcc .*the package gcc-.*-linux-gnu\), ld.lld"
        with pytest.raises(ArtifactError, match=message):
            compile_model(small_model, tmp_path / "m.subtune", target=FOREIGN, database=tmp_path / "t.db")
        assert not (tmp_path / "t.db").exists()  # it is told before the work
        with pytest.raises(ArtifactError, match=r"install ld64\.lld"):
            link.link_command("arm64-apple-macosx11.0")
        with pytest.raises(ArtifactError, match="cannot be linked here"):
            link.link_command(self.other_triple("windows-msvc"))

    @pytest.mark.parametrize(
        ("tool", "system", "expected"),
        [
            ("ld.lld", "linux-gnu", ("-shared",)),
            ("zig", "linux-gnu", ("cc", "-target")),
            ("ld64.lld", "apple-macosx11.0", ("-dylib", "-arch")),
            ("ld64.lld-19", "apple-macosx11.0", ("-dylib", "-arch")),
        ],
    )
    def test_each(self, tmp_path: Path, tool: str, system: str, expected: tuple[str, ...]) -> None:
        path = executable(tmp_path / tool, "#!/bin/sh\n")
        command = link.link_command(self.other_triple(system))
        assert command[: len(expected) + 1] == (str(path), *expected)

    def test_the_cross_compiler_comes_first(self, tmp_path: Path) -> None:
        for name in ("ld.lld", f"{triples.architecture(TRIPLE)}-linux-gnu-gcc"):
            executable(tmp_path / name, "#!/bin/sh\n")
        assert link.link_command(TRIPLE)[0].endswith("-linux-gnu-gcc")

    def test_cc_counts_only_if_it_compiles_for_that_machine(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        executable(tmp_path / "ld.lld", "#!/bin/sh\n")
        right = executable(tmp_path / "right", f"#!/bin/sh\necho {self.other_triple('poky-linux')}\n")
        wrong = executable(tmp_path / "wrong", "#!/bin/sh\necho mips-linux-gnu\n")
        monkeypatch.setenv("CC", f"{wrong} -O2")
        assert link.link_command(TRIPLE)[0].endswith("ld.lld")
        monkeypatch.setenv("CC", f"{right} -O2")
        assert link.link_command(TRIPLE)[:2] == (str(right), "-O2")
        monkeypatch.setenv("CC", "no-such-compiler")
        assert link.link_command(TRIPLE)[0].endswith("ld.lld")


@pytest.mark.skipif(not has_linker("arm64-apple-macosx11.0"), reason="needs ld64.lld (package lld) or zig")
def test_macos(small_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.subtune"
    compile_model(small_model, path, target="apple-m1", verify=False, database=tmp_path / "t.db")
    assert (path / "model.so").read_bytes()[:4] == b"\xcf\xfa\xed\xfe"  # Mach-O, 64 bit, little-endian


_RUN = """
import platform, sys
import numpy as np
from subtune.artifact import load
artifact = load(sys.argv[1], check=True)
np.savez(sys.argv[3], machine=platform.machine(), **artifact.run(dict(np.load(sys.argv[2]))))
"""


@pytest.mark.skipif("SUBTUNE_AARCH64_PYTHON" not in os.environ, reason="SUBTUNE_AARCH64_PYTHON names no Python")
@pytest.mark.parametrize("name", ["mlp", "resnet18", "bert"])
def test_whole_models_are_right_there(name: str, tmp_path: Path) -> None:
    """The command SUBTUNE_AARCH64_PYTHON is a Python for AArch64 with numpy, ml_dtypes, apache-tvm and -tvm-ffi.

    In an emulator, for one: Debian's arm64 packages of Python unpacked into a folder, the wheels that `pip download
    --platform manylinux_2_28_aarch64 --only-binary=:all:` finds unpacked beside it, and `qemu-aarch64 -L FOLDER`.
    """
    from subtune.artifact.random_inputs import random_inputs

    model = models.reduced(name)
    path = tmp_path / "m.subtune"
    compile_model(model, path, target="cortex-a72", threads=2, verify=False, database=tmp_path / "t.db")
    arrays = random_inputs(read(path).inputs)
    np.savez(tmp_path / "in.npz", **arrays)  # type: ignore[arg-type]
    command = [*os.environ["SUBTUNE_AARCH64_PYTHON"].split(), "-c", _RUN]
    root = str(Path(__file__).resolve().parents[1])
    subprocess.run(
        [*command, str(path), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")],
        check=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    got = dict(np.load(tmp_path / "out.npz"))
    assert str(got.pop("machine")) == "aarch64"
    reference = prepare(model).imported.reference
    run = reference.start(threads=1) if reference else None
    if run is None:
        pytest.skip("needs ONNX Runtime")
    for key, expected in run(arrays).items():
        assert np.abs(got[key] - expected).max() <= 2e-5 * np.abs(expected).max(), key
