"""The kernels in each step of a program that can be traced, as a file of the artifact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from subtune.core.errors import ArtifactError
from subtune.core.manifest import STEPS_NAME

Steps = tuple[tuple[str, ...], ...]


def write_steps(folder: Path, steps: Sequence[Sequence[str]]) -> None:
    """Write them into the artifact directory `folder`."""
    (folder / STEPS_NAME).write_text(json.dumps([list(names) for names in steps]), encoding="ascii")


def read_steps(folder: Path) -> Steps:
    """The names of the kernels in each step of a run, in order.

    Raises:
        ArtifactError: the file cannot be read.
    """
    file = folder / STEPS_NAME
    try:
        return tuple(tuple(map(str, names)) for names in json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError) as e:
        raise ArtifactError(f"cannot read {file}: {e}; compile the model again") from e
