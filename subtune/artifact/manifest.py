"""`manifest.json`: written with a checksum of its own, and believed only where all that it says fits together."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from subtune.artifact.rules import contradictions
from subtune.artifact.schema import SchemaError, decode, encode
from subtune.core.errors import ArtifactError
from subtune.core.manifest import MANIFEST_NAME, FileEntry, Manifest

FORMAT = 7
_AGAIN = "compile the model again"


def write(path: Path, manifest: Manifest) -> None:
    """Write the manifest of the artifact directory `path`."""
    wrong = list(contradictions(manifest))
    assert not wrong, f"the manifest contradicts itself: {'; '.join(wrong)}"
    (path / MANIFEST_NAME).write_text(to_text(encode(manifest)), encoding="ascii")


def to_text(data: dict[str, Any]) -> str:
    """A manifest's fields as the file has them, with the format's number and their checksum in front."""
    return json.dumps({"format": FORMAT, "checksum": checksum(data), **data}, indent=1)


def checksum(data: dict[str, Any]) -> str:
    """SHA-256 of the fields as JSON with sorted keys and no spaces. It finds accidents: a forger makes a new one."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read(path: Path) -> Manifest:
    """The manifest of the artifact directory `path`; it fits together, and its files are there in their sizes.

    Raises:
        ArtifactError: it is none, or of another format, or damaged.
    """
    try:
        exists, has_manifest = path.exists(), (path / MANIFEST_NAME).is_file()
    except OSError as e:  # a name that is too long, a directory that may not be read
        raise ArtifactError(f"cannot read {path}: {e.strerror or e}") from e
    if not exists:
        raise ArtifactError(f"there is no artifact at {path}")
    if not has_manifest:
        raise ArtifactError(f"{path} is not an artifact: `subtune compile` writes a directory with a {MANIFEST_NAME}")
    manifest = _parsed(path)
    for entry in manifest.files:
        _check_file(path, entry)
    return manifest


def check_hashes(path: Path, manifest: Manifest, names: tuple[str, ...] = ()) -> None:
    """Raise ArtifactError if the content of a file (default: of any) is not what was written; all such are named."""
    entries = [entry for entry in manifest.files if not names or entry.name in names]
    wrong = [str(path / entry.name) for entry in entries if sha256_of(path / entry.name) != entry.sha256]
    if wrong:
        is_damaged = "is damaged: its SHA-256 differs" if len(wrong) == 1 else "are damaged: their SHA-256 differ"
        raise ArtifactError(f"{' and '.join(wrong)} {is_damaged}; {_AGAIN}")


def sha256_of(path: Path) -> str:
    try:
        with path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise ArtifactError(f"cannot read {path}: {e.strerror or e}") from e


def _parsed(path: Path) -> Manifest:
    file = path / MANIFEST_NAME
    try:
        data = json.loads(file.read_bytes())
    except OSError as e:
        raise ArtifactError(f"cannot read {file}: {e.strerror or e}") from e
    except (ValueError, RecursionError) as e:
        raise ArtifactError(f"{file} is damaged: it is no JSON ({e}); {_AGAIN}") from e
    if not isinstance(data, dict) or type(data.get("format")) is not int:
        raise ArtifactError(f"{file} is damaged: it names no format; {_AGAIN}")
    if (found := data.pop("format")) != FORMAT:
        raise ArtifactError(f"{path} has artifact format {found}, this subtune reads {FORMAT}; {_AGAIN}")
    if data.pop("checksum", None) != checksum(data):
        raise ArtifactError(f"{file} is damaged: its checksum differs; {_AGAIN}")
    try:
        manifest = decode(Manifest, data)
    except SchemaError as e:
        raise ArtifactError(f"{file} is damaged: {e}; {_AGAIN}") from e
    for wrong in contradictions(manifest):
        raise ArtifactError(f"{file} is damaged: {wrong}; {_AGAIN}")
    return manifest


def _check_file(path: Path, entry: FileEntry) -> None:
    file = path / entry.name
    if not file.is_file():
        raise ArtifactError(f"{path} is incomplete: {entry.name} is missing; {_AGAIN}")
    if Path(os.path.realpath(file)).parent != Path(os.path.realpath(path)):
        raise ArtifactError(f"{file} is a link to a file outside of the artifact; copy the file itself there")
    if (size := file.stat().st_size) != entry.nbytes:
        raise ArtifactError(f"{file} is damaged: it has {size} bytes and should have {entry.nbytes}; {_AGAIN}")
