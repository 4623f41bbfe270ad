"""What a fleet's file says, and what is wrong with one."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subtune.core.durations import seconds_of
from subtune.core.errors import FleetError
from subtune.database import default_path

_ZOO = "zoo:"
_SERVERS = ("postgresql://", "postgres://")
_TOP = ("budget", "database", "output", "topk", "model", "target")
_MODEL = ("path", "priority", "shapes", "output")
_TARGET = ("target", "threads", "name")


@dataclass(frozen=True, slots=True)
class FleetModel:
    path: str
    output: str
    """The artifact's name, without a folder."""
    priority: int = 1
    """So many times what a subgraph of this model takes counts, beside one of another model."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetTarget:
    target: str
    threads: int | None
    name: str
    """Of the folder for its artifacts, where there are several targets."""


@dataclass(frozen=True, slots=True)
class Fleet:
    models: tuple[FleetModel, ...]
    targets: tuple[FleetTarget, ...]
    output: str | Path
    database: str
    budget_s: float | None = None
    """Of the whole run."""
    topk: int = 20

    def artifact(self, target: FleetTarget, model: FleetModel) -> Path:
        folder = Path(self.output)
        return (folder / target.name if len(self.targets) > 1 else folder) / model.output


def read_fleet(path: str | Path) -> Fleet:
    """Paths in the file are taken from the folder that it is in.

    Raises:
        FleetError: there is none, or it is not as it should be.
    """
    path = Path(path)
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise FleetError(f"{path} cannot be read: {e.strerror or e}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise FleetError(f"{path} is no TOML: {e}") from e
    return _Reader(path).fleet(given)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def fleet(self, given: Mapping[str, Any]) -> Fleet:
        self._check_names(given, _TOP, "")
        models = tuple(self._model(one, f"[[model]] {number}") for number, one in self._tables(given, "model"))
        targets = tuple(self._target(one, f"[[target]] {number}") for number, one in self._tables(given, "target"))
        self._check_unique("the artifact", [model.output for model in models], "output")
        self._check_unique("the target", [target.name for target in targets], "name")
        database = self._text(given, "database", str(default_path()), "")
        return Fleet(
            models,
            targets,
            self._beside(self._text(given, "output", ".", "")),
            database if database.startswith(_SERVERS) else str(self._beside(database)),
            self._budget(given),
            self._whole(given, "topk", 20, ""),
        )

    def _model(self, given: Mapping[str, Any], where: str) -> FleetModel:
        self._check_names(given, _MODEL, where)
        path = self._text(given, "path", "", where)
        if not path:
            raise self._error(where, "has no path", 'give path = "MODEL.onnx" or "zoo:NAME"')
        is_zoo = path.startswith(_ZOO)
        stem = path.removeprefix(_ZOO).partition("?")[0] if is_zoo else Path(path).stem
        output = self._text(given, "output", stem, where)
        if Path(output).name != output:
            raise self._error(where, f"has output {output!r}", "give a name without a folder")
        found = path if is_zoo else str(self._beside(path))
        name = output if output.endswith(".subtune") else f"{output}.subtune"
        return FleetModel(found, name, self._whole(given, "priority", 1, where), self._shapes(given, where))

    def _target(self, given: Mapping[str, Any], where: str) -> FleetTarget:
        self._check_names(given, _TARGET, where)
        target = self._text(given, "target", "auto", where)
        threads = self._whole(given, "threads", 1, where) if "threads" in given else None
        plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in target)
        name = self._text(given, "name", plain if threads is None else f"{plain}-{threads}", where)
        if Path(name).name != name:
            raise self._error(where, f"has name {name!r}", "give one that can be a folder's")
        return FleetTarget(target, threads, name)

    def _shapes(self, given: Mapping[str, Any], where: str) -> dict[str, tuple[int, ...]]:
        shapes = given.get("shapes", {})
        is_right = isinstance(shapes, dict) and all(
            isinstance(dims, list) and all(type(dim) is int and dim > 0 for dim in dims) for dims in shapes.values()
        )
        if not is_right:
            raise self._error(where, f"has shapes {shapes!r}", "give them as shapes = { INPUT = [1, 3, 224, 224] }")
        return {name: tuple(dims) for name, dims in shapes.items()}

    def _budget(self, given: Mapping[str, Any]) -> float | None:
        if "budget" not in given:
            return None
        try:
            return seconds_of(str(given["budget"]))
        except ValueError as e:
            raise FleetError(f"{self._path} has budget {e}") from e

    def _tables(self, given: Mapping[str, Any], name: str) -> list[tuple[int, Mapping[str, Any]]]:
        tables = given.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
            raise FleetError(f"{self._path} has {name} = {tables!r}: write [[{name}]] above the lines of each")
        if not tables:
            raise FleetError(f"{self._path} has no [[{name}]]: give one or more")
        return list(enumerate(tables, start=1))

    def _text(self, given: Mapping[str, Any], name: str, otherwise: str, where: str) -> str:
        value = given.get(name, otherwise)
        if not isinstance(value, str):
            raise self._error(where, f"has {name} = {value!r}", "give a text in quotes")
        return value

    def _whole(self, given: Mapping[str, Any], name: str, otherwise: int, where: str) -> int:
        value = given.get(name, otherwise)
        if type(value) is not int or value < 1:
            raise self._error(where, f"has {name} = {value!r}", "give a whole number above zero")
        return value

    def _check_names(self, given: Mapping[str, Any], known: Collection[str], where: str) -> None:
        if unknown := sorted(set(given) - set(known)):
            raise self._error(where, f"has {unknown[0]!r}, which nothing reads", f"it may have {', '.join(known)}")

    def _check_unique(self, what: str, names: list[str], field: str) -> None:
        name, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise FleetError(f"{self._path} has {what} {name} {times} times: give each its own {field}")

    def _beside(self, path: str) -> Path:
        return self._path.parent / path

    def _error(self, where: str, what: str, then: str) -> FleetError:
        return FleetError(f"{where + ' of ' if where else ''}{self._path} {what}: {then}")
