"""Compiled graphs on disk, by what they are: the next process finds the artifact and tunes nothing.

torch/KEY/model.subtune     the artifact
torch/KEY/signature.json    what its inputs and outputs are among the graph's arguments and results
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from subtune import __version__, backends, runtime
from subtune.artifact import Artifact
from subtune.artifact import load as load_artifact
from subtune.core.errors import SubtuneError
from subtune.core.numerics import Numerics
from subtune.core.scratch import scratch
from subtune.integrations.torch.settings import Settings
from subtune.integrations.torch.signature import Computed, Fixed, Passed, Signature

_MOST_BYTES = 10 << 30
"""Of all graphs together; above it, those used the longest ago are removed."""
_ARTIFACT, _SIGNATURE = "model.subtune", "signature.json"
_FORM = 1
"""Of what is written here and how keys are made: raise it when either changes."""

_log = logging.getLogger(__name__)


def default_folder() -> Path:
    """`torch` in the user's cache directory for subtune, beside the tuning database."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("subtune")) / "torch"


@dataclass(frozen=True, slots=True)
class Cache:
    folder: Path

    @staticmethod
    def of(settings: Settings) -> Cache | None:
        """None where nobody wants one."""
        if settings.cache is False:
            return None
        return Cache(default_folder() if settings.cache is True else Path(settings.cache))

    def load(self, key: str, threads: int | None) -> tuple[Artifact, Signature] | None:
        """None where it is not there, or damaged, or of other versions: then it is compiled again."""
        folder = self.folder / key
        try:
            signature = _read(json.loads((folder / _SIGNATURE).read_text(encoding="utf-8")))
            artifact = load_artifact(folder / _ARTIFACT, threads=threads)
            os.utime(folder)
        except FileNotFoundError:
            return None
        except (SubtuneError, OSError, ValueError, KeyError) as e:
            _log.warning("the compiled graph %s is not used, it is made again: %s", folder, e)
            return None
        return artifact, signature

    def store(
        self, key: str, build: Callable[[Path | None], Artifact], signature: Signature
    ) -> tuple[Artifact, Signature]:
        """Build an artifact and keep it; where that cannot be written, it lives as long as this process."""
        written = _written(signature)
        try:
            if written is None:
                return build(None), signature
            self.folder.mkdir(parents=True, exist_ok=True)
            place = scratch(".", ".new", self.folder)
        except OSError as e:
            _log.warning("compiled graphs are not kept: %s cannot be written (%s)", self.folder, e)
            return build(None), signature
        try:
            build(place.path / _ARTIFACT)
            (place.path / _SIGNATURE).write_text(json.dumps(written), encoding="utf-8")
            target = self.folder / key
            shutil.rmtree(target, ignore_errors=True)  # a damaged one
            with contextlib.suppress(OSError):  # another process was faster
                place.path.rename(target)
            self._tidy(key)
            return load_artifact(target / _ARTIFACT), signature
        finally:
            place.remove()

    def _tidy(self, kept: str) -> None:
        sizes = {folder: _nbytes(folder) for folder in self.folder.iterdir() if not folder.name.startswith(".")}
        total = sum(sizes.values())
        for folder in sorted(sizes, key=_last_used):
            if total <= _MOST_BYTES:
                return
            if folder.name != kept:
                total -= sizes[folder]
                shutil.rmtree(folder, ignore_errors=True)


def key_of(
    module: fx.GraphModule, given: Sequence[Any], weights: Sequence[torch.Tensor], options: Mapping[str, Any]
) -> str:
    """A hash of the graph's operators, its arguments' types and shapes, all weights' values, the machine, what the user
    chose, and the versions of what compiles.
    """
    threads = options["threads"]
    numerics = Numerics(options["exact"], options["tf32"], precision=options["precision"])
    device = backends.device_of(options["target"], threads, None, numerics, is_measured=False)
    own = {name: str(value) for name, value in options.items() if name != "database"}
    versions = (_FORM, __version__, torch.__version__, *sorted(runtime.versions().items()))
    found = hashlib.sha256(repr((versions, device.fingerprint(), sorted(own.items()))).encode())
    found.update(module.code.encode())
    for value in given:
        found.update(repr(_described(value)).encode())
    for tensor in (*weights, *_constants(module)):
        found.update(repr(_described(tensor)).encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]


def _described(value: Any) -> tuple[Any, ...]:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), str(value.dtype), value.device.type)
    return (type(value).__name__, value)


def _constants(module: fx.GraphModule) -> Iterator[torch.Tensor]:
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = module
            for name in node.target.split("."):
                value = getattr(value, name)
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, fx.GraphModule):
                yield from _constants(value)


def _written(signature: Signature) -> dict[str, Any] | None:
    """As JSON; None where a result is a tensor that only this process has."""
    found: dict[str, Any] = {"arguments": [], "results": []}
    for part, entries in (("arguments", signature.arguments), ("results", signature.results)):
        for one in entries:
            if isinstance(one, Computed):
                found[part].append({"tensor": one.name})
            elif isinstance(one, Passed):
                found[part].append({"argument": one.argument})
            elif one.value is None or isinstance(one.value, bool | int | float | str):
                found[part].append({"value": one.value})
            else:
                return None
    return found


def _read(written: Mapping[str, Any]) -> Signature:
    arguments = tuple(one for each in written["arguments"] if not isinstance(one := _entry(each), Passed))
    results = tuple(map(_entry, written["results"]))
    in_spec = pytree.tree_structure(((0,) * len(arguments), {}))
    return Signature(arguments, results, in_spec, pytree.tree_structure((0,) * len(results)))


def _entry(written: Mapping[str, Any]) -> Computed | Passed | Fixed:
    if "tensor" in written:
        return Computed(str(written["tensor"]))
    return Passed(int(written["argument"])) if "argument" in written else Fixed(written["value"])


def _nbytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    except OSError:  # another process removes it
        return 0


def _last_used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
