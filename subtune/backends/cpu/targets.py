"""What `--target` may be, and what LLVM knows of it: processor names, TVM's tags, JSON; names, triples, extensions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from subtune import runtime
from subtune.backends.cpu.processors import ALIASES
from subtune.core.errors import TargetError
from subtune.runtime import triples

_OTHER_TRIPLES = ("aarch64-linux-gnu", "x86_64-linux-gnu")
_APPLE_TRIPLE = "arm64-apple-macosx11.0"


@dataclass(frozen=True, slots=True)
class Named:
    """What a target says: LLVM's name of the processor, the triple, the number of cores if it gives one.

    `added` and `removed`: instruction-set extensions that this processor has beside its name's, or lacks.
    """

    name: str
    triple: str
    cores: int | None = None
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()


def read_target(target: str | Mapping[str, Any]) -> Named:
    from tvm.target import Target

    if target == "auto":
        return Named(_global("target.llvm_get_system_cpu"), _global("target.llvm_get_system_triple"))
    fields: dict[str, Any]
    if not isinstance(target, str):
        fields = dict(target)
    elif target.lstrip().startswith("{"):
        try:
            fields = json.loads(target)
        except ValueError as e:
            raise TargetError(f"target {target!r} is no JSON object: {e}") from e
    elif target.startswith("llvm"):  # as TVM wrote targets before it took JSON only
        fields = dict(re.findall(r"-(mcpu|mtriple|num-cores)=(\S+)", target))
    elif "/" in target:
        try:
            fields = json.loads(str(Target(target)))
        except (ValueError, RuntimeError) as e:
            raise TargetError(f"TVM has no target tag {target!r}: see tvm.target.list_tags()") from e
    else:
        fields = {"mcpu": target}
    if str(fields.get("kind", "llvm")) != "llvm":
        raise TargetError(f"target {target!r}: only the kind llvm, CPUs, is supported")
    name = str(fields.get("mcpu", ""))
    triple = str(fields.get("mtriple") or _triple_of(name))
    extensions = {str(extension) for extension in fields.get("mattr", ())}
    is_known = not name or ALIASES.get(name, name) in processors_of(triple)  # LLVM prints a line for one that is not
    had = features_of(name, triple) if extensions and is_known else frozenset()
    added = frozenset(e[1:] for e in extensions if e.startswith("+")) - had
    here = runtime.present_features(added) if added and triples.is_here(triple) else frozenset()
    removed = frozenset(e[1:] for e in extensions if e.startswith("-"))
    known = {f"+{feature}" for feature in had | here} | {f"-{feature}" for feature in had}
    if unknown := sorted(extensions - known):
        raise TargetError(
            f"target {target!r}: mattr {', '.join(unknown)} is not what {name or 'any processor of ' + triple} has; "
            "name the processor that has it as mcpu"
        )
    cores = fields.get("num-cores")
    if cores is not None and not str(cores).isdecimal():
        raise TargetError(f"target {target!r}: num-cores must be a number, not {cores!r}")
    return Named(name, triple, int(cores) if cores else None, added, removed)


def _triple_of(name: str) -> str:
    """The triple that processor `name` is meant for: this machine's if LLVM knows the name there."""
    system = _global("target.llvm_get_system_triple")
    known = ALIASES.get(name, name)
    for triple in (system, *_OTHER_TRIPLES):
        if not name or known in processors_of(triple):
            is_apple = known.startswith("apple-") and triples.system(system) != "darwin"
            return _APPLE_TRIPLE if is_apple and triples.architecture(system) != "aarch64" else triple
    return system


def processors_of(triple: str) -> frozenset[str]:
    """LLVM's names of the processors of the triple's architecture."""
    import tvm
    from tvm.target import Target

    names = tvm.get_global_func("target.llvm_get_cpu_archlist")(Target({"kind": "llvm", "mtriple": triple}))
    return frozenset(str(name) for name in names)


@lru_cache
def features_of(name: str, triple: str) -> frozenset[str]:
    """LLVM's names of the instruction-set extensions that processor `name` has."""
    import tvm
    from tvm.target import Target

    config = {"kind": "llvm", "mtriple": triple, **({"mcpu": name} if name else {})}
    return frozenset(str(f) for f in dict(tvm.get_global_func("target.llvm_get_cpu_features")(Target(config))))


def _global(name: str) -> str:
    import tvm

    return str(tvm.get_global_func(name)())
