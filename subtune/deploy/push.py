"""An artifact onto a device behind TVM's RPC: its files, a run of it there, and whether the results are right."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from subtune import frontends
from subtune.artifact import load
from subtune.artifact import manifest as manifests
from subtune.artifact.random_inputs import random_inputs
from subtune.backends.cpu.artifact_there import ArtifactThere, RunThere, session_at
from subtune.core.errors import ArtifactError, ModelError, SubtuneError, VerificationError
from subtune.core.manifest import MANIFEST_NAME, FileEntry, Manifest
from subtune.core.reference import CannotRun
from subtune.runtime import missing_features, triples
from subtune.runtime.remote import Remote, devices_of, facts_of, read_remote
from subtune.verification.verify import output_error

_FOLDER = "subtune"
"""Below the home of the user who has started the server."""
_MIB = float(1 << 20)
_Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Pushed:
    """What lies there now, and what a run of it gave.

    Attributes:
        remote: the device's address.
        path: of the artifact there.
        sent_bytes, kept_bytes: of its files; the latter were there already.
        threads: that it runs on.
        run_s: seconds of a run there on random inputs; None where it was not run.
        compared: with what its outputs agree and how well, or why that is not known.
    """

    remote: str
    path: str
    sent_bytes: int
    kept_bytes: int
    threads: int
    run_s: float | None
    compared: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    def __str__(self) -> str:
        kept = f", {self.kept_bytes / _MIB:.1f} MiB were there already" if self.kept_bytes else ""
        lines = [f"{self.remote} has {self.path}: sent {self.sent_bytes / _MIB:.1f} MiB{kept}; all SHA-256 agree"]
        if self.run_s is not None:
            lines.append(f"a run there takes {self.run_s * 1e3:.3f} ms on {self.threads} threads")
        return "\n".join([*lines, self.compared])


def push(
    path: str | os.PathLike[str],
    remote: str,
    folder: str = "",
    insecure: bool = False,
    values: Mapping[str, int] | None = None,
) -> Pushed:
    """Put the artifact `path` onto a device, run it there, and compare its outputs.

    They are compared with what the artifact gives here, or, where this machine cannot run it, with a reference's that
    runs the model it was compiled from, if that is still there.

    Args:
        remote: host:port of the device's server, or host:port/key of a tracker, which lends one device.
        folder: where to put it there, below the home of the server's user if it is not absolute; "" is `subtune`.
        insecure: the server may have a public address.
        values: of the symbols of a model of many shapes, in the run; the largest where there are none.

    Raises:
        SubtuneError: the artifact is damaged, or for another kind of device; the device cannot be reached or written
            to; or the outputs are wrong.
    """
    local = Path(path)
    manifest = manifests.read(local)
    manifests.check_hashes(local, manifest)
    _check_kind(local, manifest)
    at = read_remote(remote, insecure)
    devices_of(at, insecure)
    _check_device(local, manifest, at)
    reference = _Reference(local, manifest, values or manifest.domain.greatest)
    nbytes = sum(file.nbytes for file in manifest.files)
    with session_at(at, manifest.triple, manifest.threads, nbytes) as session:
        there = _place(session, at, folder, local.resolve().name)
        sent, kept = _send(session, local, there, manifest)
        found = _run(session, there, manifest, reference)
    run_s = found.seconds if found else None
    compared = reference.compared(found.outputs) if found else f"not run there: {_why_not(manifest)}"
    return Pushed(str(at), there, sent, kept, manifest.threads, run_s, compared)


def _check_kind(path: Path, manifest: Manifest) -> None:
    if manifest.kind != "cpu":
        raise ArtifactError(f"{path} is for a GPU ({manifest.device}), and only those for CPUs can be pushed; copy it")
    if triples.system(manifest.triple) != "linux":
        raise ArtifactError(f"{path} is for {manifest.triple}, and only Linux can be pushed to; copy it")


def _check_device(path: Path, manifest: Manifest, remote: Remote) -> None:
    facts = facts_of(remote)
    there, wanted = str(facts.target["mtriple"]), manifest.triple
    if any(of(there) != of(wanted) for of in (triples.architecture, triples.system)):
        raise ArtifactError(f"{path} was compiled for {wanted}, and {remote} is {there}; compile it with --remote")
    if facts.threads < manifest.threads:
        raise ArtifactError(
            f"{path} runs on {manifest.threads} threads, and the server at {remote} has {facts.threads}: start it with "
            f"TVM_NUM_THREADS={manifest.threads}"
        )


def _place(session: ArtifactThere, remote: Remote, folder: str, name: str) -> str:
    """The artifact's folder there, which exists now."""
    found = PurePosixPath(folder or _FOLDER)
    if not found.is_absolute():
        home = session.home()
        if not home:
            raise SubtuneError(f"{remote} knows no home: say with --to where to put the artifact, from / on")
        found = PurePosixPath(home) / found
    session.make(str(found / name))
    return str(found / name)


def _send(session: ArtifactThere, local: Path, there: str, manifest: Manifest) -> tuple[int, int]:
    """Bytes that were sent, and that were there already. The manifest comes last: without it nothing is an artifact."""
    text = local / MANIFEST_NAME
    last = FileEntry(MANIFEST_NAME, text.stat().st_size, manifests.sha256_of(text))
    sent = kept = 0
    for entry in (*manifest.files, last):
        if session.send(local / entry.name, there, entry):
            sent += entry.nbytes
        else:
            kept += entry.nbytes
    return sent, kept


def _run(session: ArtifactThere, there: str, manifest: Manifest, reference: _Reference) -> RunThere | None:
    if _why_not(manifest):
        return None
    inputs = [reference.inputs[spec.name] for spec in manifest.inputs]
    outputs = [spec.at(reference.values) for spec in manifest.outputs]
    symbols = [reference.values[name] for name in manifest.domain.names]
    return session.run(manifest, there, inputs, outputs, symbols)


def _why_not(manifest: Manifest) -> str:
    """An artifact whose `main` wants more than addresses."""
    if manifest.caches:
        return "it keeps caches in place"
    if not manifest.memory.takes_addresses:
        return "its program runs in TVM's virtual machine"
    return ""


class _Reference:
    """Random inputs, and what their outputs should be, by whom this machine can ask.

    Args:
        values: of the symbols.
    """

    def __init__(self, path: Path, manifest: Manifest, values: Mapping[str, int]) -> None:
        self._path, self._manifest, self.values = path, manifest, dict(values)
        self._imported = None if self._runs_here() else self._source()
        other = self._imported.reference if self._imported else None
        self._other = other if other is not None and other.is_installed else None
        limits = self._other.limits() if self._other else {}
        self.inputs = random_inputs(manifest.inputs, limits=limits, values=self.values)

    def compared(self, outputs: _Arrays) -> str:
        """A sentence for people. Raises VerificationError where outputs are wrong."""
        if self._runs_here():
            return self._agreement(outputs, load(self._path, share_weights=True).run(self.inputs), "the artifact here")
        run = self._other.start(1) if self._other else None
        if self._other is None or run is None:
            return "its outputs are not compared: this machine cannot run it, and its model is not where it was"
        try:
            return self._agreement(outputs, run(self.inputs), self._other.name)
        except CannotRun as e:
            return f"its outputs are not compared: {self._other.name} says {e}"

    def _agreement(self, got: _Arrays, expected: _Arrays, whose: str) -> str:
        precision = self._manifest.source.precision
        errors = [output_error(name, got[name], expected[name], precision) for name in got]
        if wrong := [str(error) for error in errors if not error.is_within]:
            raise VerificationError(f"a run there disagrees with {whose}: {'; '.join(wrong)}")
        if all(got[name].tobytes() == expected[name].tobytes() for name in got):
            return f"its outputs are those of {whose}, bit for bit"
        worst = max(error.max_rel for error in errors)
        return f"its outputs agree with {whose}: largest relative error {worst:.2g}"

    def _runs_here(self) -> bool:
        return triples.is_here(self._manifest.triple) and not missing_features(self._manifest.features)

    def _source(self) -> frontends.Imported | None:
        """The model that it was compiled from, if it is where it was and what it was."""
        source = self._manifest.source
        try:
            if not source.model or (source.sha256 and manifests.sha256_of(Path(source.model)) != source.sha256):
                return None
            return frontends.load(source.model, {**dict(source.shapes), **self.values})
        except (ArtifactError, ModelError):
            return None
