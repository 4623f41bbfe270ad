"""Another architecture behind TVM's RPC: one that is emulated, where there is a root for it, and what is sent to it.

docs/remote.md says how to make the root that SUBTUNE_ARM_ROOT names.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm

from subtune.artifact import manifest
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.lowering import files_there, ring
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.backends.host import link
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import ArtifactError
from subtune.core.measurement import FailureKind, Timing
from subtune.deploy.push import push
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from subtune.measure.site import Site
from subtune.models import reduced
from subtune.runtime import triples
from subtune.runtime.remote import Remote, facts_of
from tests.measure.rpc_server import rpc_server

TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}
ROOT, EMULATOR = os.environ.get("SUBTUNE_ARM_ROOT", ""), "qemu-aarch64-static"
OF_ELF = 183
"""AArch64's number in an ELF file's header, which is 16 bits from byte 18 on."""


def has_linker() -> bool:
    try:
        link.link_command(TARGET["mtriple"])
    except ArtifactError:
        return False
    return True


needs_linker = pytest.mark.skipif(
    not has_linker(), reason="no linker for aarch64: install lld or gcc-aarch64-linux-gnu"
)
needs_root = pytest.mark.skipif(
    not (ROOT and shutil.which(EMULATOR)), reason=f"needs {EMULATOR}, and SUBTUNE_ARM_ROOT (docs/remote.md)"
)


@pytest.fixture(scope="module")
def arm() -> CPUModel:
    return CPU(TARGET, 2)


# -- what is sent


@needs_linker
@pytest.mark.parametrize("tools", [ring.beginning, ring.tools, files_there.tools])
def test_tools_are_built_for_it(tools, arm, tmp_path):
    ring.write(tools(), arm, tmp_path / "tools.so")
    assert machine_of(tmp_path / "tools.so") == OF_ELF


@needs_linker
def test_kernels_are_built_for_it(doubles, arm, tmp_path):
    device = as_device(arm)
    path = device.backend.build_to_send(doubles.graph, device, str(tmp_path / "k"), True)
    assert machine_of(Path(path)) == OF_ELF


def test_it_is_its_machine_code(doubles, arm):
    """It multiplies four floats at a time in its vector registers, and calls what reads Linux's clock."""
    target = arm.target()
    text = tvm.compile(ring.ring(doubles.graph, target), target, tir_pipeline=PIPELINE).mod.inspect_source("asm")
    assert ".4s" in text
    assert "bl\tclock_gettime" in text
    for register in ("%rax", "%xmm", "%ymm", "%zmm"):
        assert register not in text


def machine_of(library: Path) -> int:
    return int.from_bytes(library.read_bytes()[18:20], "little")


# -- what runs there


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    """TVM starts Python again for its processes: by a script, as the system cannot run that program itself."""
    folder, root = tmp_path_factory.mktemp("arm"), Path(ROOT).resolve()
    program = next(iter(sorted((root / "usr" / "bin").glob("python3.*"))))
    python = folder / "python"
    home = f"PYTHONHOME={shlex.quote(str(root / 'usr'))} PYTHONPATH= PYTHONDONTWRITEBYTECODE=1"
    emulated = shlex.join([EMULATOR, "-0", str(python), "-L", str(root), str(program)])
    python.write_text(f'#!/bin/sh\n{home} exec {emulated} "$@"\n')
    python.chmod(0o755)
    with rpc_server(folder / "log.txt", 2, python=[str(python)]) as port:
        yield Remote("127.0.0.1", port)


@needs_root
def test_it_says_what_it_is(remote):
    facts = facts_of(remote)
    assert triples.architecture(facts.target["mtriple"]) == "aarch64"
    assert facts.threads == 2


@needs_root
@needs_linker
def test_what_ends_its_process_costs_itself_alone(remote, doubles, arm):
    with (
        LocalMeasurer(
            builders=1, schedule="doubles:schedule", search_path=[doubles.DIRECTORY], sites=[Site(remote)]
        ) as measurer,
        measurer.session(doubles.workload(), arm) as session,
    ):
        session.build([DEFAULT, *map(Candidate, ("segfault", "swallows", "vector"))], math.inf)
        assert session.time(Candidate("segfault"), 0.01, math.inf).kind == FailureKind.CRASH
        assert session.time(Candidate("swallows"), 0.01, math.inf).kind == FailureKind.WRONG_RESULT
        assert isinstance(session.time(Candidate("vector"), 0.001, math.inf), Timing)


@needs_root
@needs_linker
def test_a_model_is_tuned_and_runs_right_there(remote, tmp_path):
    """No speed is claimed: it is emulated."""
    onnx.save(reduced("squeezenet"), tmp_path / "m.onnx")
    report = compile_model(
        tmp_path / "m.onnx",
        tmp_path / "m.subtune",
        remote=str(remote),
        target=TARGET,
        threads=2,
        topk=1,
        database=tmp_path / "t.db",
    )
    assert report.verified
    assert not report.failures
    assert all(row.tuned_s > 0 for row in report.rows)
    assert triples.architecture(manifest.read(Path(report.path)).triple) == "aarch64"
    found = push(report.path, str(remote), str(tmp_path / "there"))
    assert found.run_s is not None
    assert np.isfinite(found.run_s)
    assert "its outputs agree with ONNX Runtime" in found.compared
