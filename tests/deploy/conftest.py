"""A model of fixed shapes and one whose shapes vary, exported once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from subtune.artifact import manifest as manifests
from subtune.core.manifest import TRACE_NAME, FileEntry
from subtune.deploy import export_standalone
from tests.artifact.dynamic_model import write_dynamic


@pytest.fixture(scope="session")
def dynamic_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dynamic(tmp_path_factory.mktemp("varying") / "dynamic.subtune")


@pytest.fixture(scope="session")
def exports(small_artifact: Path, dynamic_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `small` and `dynamic`, both exported and then moved: nothing may name the first place.

    `small` was compiled for traces.
    """
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("needs a C compiler")
    first, moved = tmp_path_factory.mktemp("export"), tmp_path_factory.mktemp("moved")
    traced = shutil.copytree(small_artifact, first / "traced.subtune")
    (traced / TRACE_NAME).write_bytes(b"a library")
    manifest = manifests.read(traced)
    entry = FileEntry(TRACE_NAME, len(b"a library"), manifests.sha256_of(traced / TRACE_NAME))
    manifests.write(traced, replace(manifest, files=(*manifest.files, entry)))
    for name, artifact in (("small", traced), ("dynamic", dynamic_artifact)):
        export_standalone(artifact, first / name)
        (first / name).rename(moved / name)
    return moved
