"""The ONNX file an artifact was compiled from: what the other frameworks run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from subtune.core.errors import ArtifactError
from subtune.core.manifest import Source
from subtune.frontends.dispatch import is_relay
from subtune.frontends.onnx.reference import OnnxRuntime, integer_limits


@contextmanager
def onnx_file(source: Source, scratch: Path, needed: bool = True) -> Iterator[tuple[Path | None, dict[str, int]]]:
    """The file, and the exclusive bounds of its integer inputs. A zoo model is written into `scratch`.

    Raises ArtifactError if the file has changed since; if it is gone, too, where it is `needed`, else gives (None, {}).
    """
    import onnx

    if source.model.startswith("zoo:"):
        from subtune.frontends import load

        reference = load(source.model, dict(source.shapes)).reference
        assert isinstance(reference, OnnxRuntime)
        path = scratch / "model.onnx"
        assert isinstance(reference.model, onnx.ModelProto)
        onnx.save(reference.model, path)
    else:
        path = Path(source.model)
        if not source.model or not path.is_file():
            if needed:
                where = source.model or "a model in memory"
                raise ArtifactError(f"the artifact was compiled from {where}, which is not there to compare with")
            yield None, {}
            return
        if source.sha256 and hashlib.sha256(path.read_bytes()).hexdigest() != source.sha256:
            raise ArtifactError(f"{path} has changed since the artifact was compiled from it; compile it again")
    if is_relay(path):
        if needed:
            raise ArtifactError(f"the artifact was compiled from {path}: no other framework runs Relay models")
        yield None, {}
        return
    yield path, integer_limits(onnx.load(path, load_external_data=False))
