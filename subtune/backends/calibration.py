"""What was measured of devices, as data: figures, each with its day and the way it was found, one JSON file a machine.

    {"machine": "AMD EPYC, 2 threads",
     "figures": {"grain_s": {"value": 2e-08, "date": "2026-11-21", "how": "slope over 8 to 2048 pieces"}}}

A backend's own figures are shipped beside it. What `subtune device --calibrate` measures is kept in the user's cache
directory, by the fingerprint of the device, or in a file that `--device` reads. Figures that this version does not know
are passed over.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from subtune.core.errors import TargetError

T = TypeVar("T")
Place = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    how: str
    """What was measured, and how the figure follows from it."""
    date: str


@dataclass(frozen=True, slots=True)
class Calibration:
    machine: str
    figures: Mapping[str, Figure]

    @property
    def values(self) -> dict[str, float]:
        return {name: figure.value for name, figure in self.figures.items()}

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


def found_today(machine: str, figures: Mapping[str, tuple[float, str]]) -> Calibration:
    """Of (value, how) of every figure; four digits are kept."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    found = {
        name: Figure(value if isinstance(value, int) else float(f"{value:.4g}"), how, today)
        for name, (value, how) in figures.items()
    }
    return Calibration(machine, found)


def read_calibration(path: Place) -> Calibration:
    """Raises TargetError where `path` is no such file."""
    return _calibration(_object(path, "calibration"), path)


def write_calibration(calibration: Calibration, path: Place) -> None:
    """Whole or not at all. Raises TargetError."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(calibration.to_json() + "\n")
        part.replace(path)
    except OSError as e:
        raise TargetError(f"cannot write the calibration {path}: {e.strerror}; name another file by --output") from e


def calibration_path(fingerprint: str) -> Path:
    """Where figures of devices with that fingerprint are kept for this user."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("subtune")) / "calibration" / f"{fingerprint.replace('/', '-')}.json"


def calibrated(model: T, fingerprint: str) -> T:
    """`model` with what was measured of such a device for this user; as it is where nothing was. Raises TargetError."""
    path = calibration_path(fingerprint)
    return with_figures(model, read_calibration(path).values) if path.is_file() else model


def with_figures(model: T, values: Mapping[str, float]) -> T:
    """The dataclass `model` with the figures that are fields of its own, or of a dataclass in it."""
    changes: dict[str, Any] = {}
    for field in fields(model):  # type: ignore[arg-type]
        known = getattr(model, field.name)
        if is_dataclass(known):
            changes[field.name] = with_figures(known, values)
        elif field.name in values:
            changes[field.name] = type(known)(values[field.name])
    return replace(model, **changes)  # type: ignore[type-var]


def overridden(model: T, path: Place) -> T:
    """`model` with the fields, or the figures, that the JSON object in `path` gives. Raises TargetError."""
    data = _object(path, "device description")
    if "figures" in data:
        return with_figures(model, _calibration(data, path).values)
    return _with_fields(model, data, f"device description {path}")


def _with_fields(model: Any, data: Mapping[str, Any], where: str) -> Any:
    known = {field.name: str(field.type) for field in fields(model)}
    if unknown := sorted(set(data) - set(known)):
        raise TargetError(f"{where}: unknown fields {', '.join(unknown)}; known fields are {', '.join(known)}")
    changes: dict[str, Any] = {}
    for name, value in data.items():
        if is_dataclass(inner := getattr(model, name)) and isinstance(value, dict):
            changes[name] = _with_fields(inner, value, f"{where}: {name}")
            continue
        what, read = _READERS.get(known[name], ("an object of fields", _no))
        try:
            changes[name] = read(value)
        except (TypeError, ValueError) as e:
            raise TargetError(f"{where}: {name} must be {what}, not {value!r}") from e
    return replace(model, **changes)


def _calibration(data: Mapping[str, Any], path: Place) -> Calibration:
    try:
        figures = {
            name: Figure(_number(entry["value"]), str(entry["how"]), str(entry["date"]))
            for name, entry in data["figures"].items()
        }
        return Calibration(str(data["machine"]), figures)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise TargetError(
            f"calibration {path}: a figure needs a positive value, how and date, a file machine and figures ({e!r}); "
            "delete it and run `subtune device --calibrate` again"
        ) from e


def _object(path: Place, what: str) -> dict[str, Any]:
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as e:
        raise TargetError(f"cannot read the {what} {path}: {e}; give a JSON object of fields or delete it") from e
    if not isinstance(data, dict):
        raise TargetError(f"{what} {path}: it is not a JSON object")
    return data


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(value)
    return value


def _positive(value: Any) -> float:
    if _number(value) == 0:
        raise ValueError(value)
    return float(value)


def _whole(value: Any) -> int:
    if not _positive(value).is_integer():
        raise ValueError(value)
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, value if isinstance(value, list) else _no(value)))


def _rates(value: Any) -> tuple[tuple[str, int], ...]:
    return tuple((_text(name), _whole(rate)) for name, rate in (value.items() if isinstance(value, dict) else value))


def _no(value: Any) -> Any:
    raise TypeError(value)


_READERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "int": ("a positive whole number", _whole),
    "float": ("a positive number", _positive),
    "str": ("text", _text),
    "tuple[str, ...]": ("a list of texts", _texts),
    "tuple[tuple[str, int], ...]": ("an object of positive whole numbers", _rates),
}
"""What a field of each type must be, and how it is read from JSON; those that do not fit raise."""
