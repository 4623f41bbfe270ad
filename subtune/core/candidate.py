"""One complete schedule decision for a workload: plain data, so that it can be stored, compared and replayed."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

Knob = int | str | bool
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Candidate:
    """`family` names a schedule family of a backend; `knobs` are its decisions, sorted by name.

    `predicted_s` is the policy's estimate of the run time in seconds: it orders candidates and is reported
    beside the measurement, and takes no part in equality.
    """

    family: str
    knobs: tuple[tuple[str, Knob], ...] = ()
    predicted_s: float = field(default=0.0, compare=False)

    @classmethod
    def make(cls, family: str, predicted_s: float = 0.0, **knobs: Knob) -> Candidate:
        return cls(family, tuple(sorted(knobs.items())), predicted_s)

    @classmethod
    def of(cls, family: str, knobs: Any, predicted_s: float = 0.0) -> Candidate:
        """`knobs`: a frozen dataclass of decisions; fields that have their default value are left out."""
        given = ((f.name, getattr(knobs, f.name)) for f in fields(knobs) if getattr(knobs, f.name) != f.default)
        return cls(family, tuple(sorted(given)), predicted_s)

    def as_knobs(self, kind: type[K]) -> K | str:
        """The decisions as the frozen dataclass `kind`; or what is wrong: a name, a type, one that is missing."""
        given, types = dict(self.knobs), _types(kind)  # type: ignore[arg-type]
        if unknown := sorted(set(given) - set(types)):
            return f"{self.family} has no knob {', '.join(unknown)}"
        missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in given]  # type: ignore[arg-type]
        if missing:
            return f"{self.family} needs the knob {', '.join(missing)}"
        for name, value in given.items():
            if not isinstance(value, types[name]) or (isinstance(value, bool) and bool not in types[name]):
                return f"{self.family}: {name} cannot be {value!r}"
        return kind(**given)

    def __getitem__(self, name: str) -> Knob:
        return dict(self.knobs)[name]

    def get(self, name: str) -> Knob | None:
        """The knob `name`, None where the candidate leaves it out."""
        return dict(self.knobs).get(name)

    @property
    def is_serial(self) -> bool:
        """Whether the kernel runs on the calling thread alone, as very short ones should."""
        return bool(dict(self.knobs).get("serial", False))

    def having(self, **knobs: Knob) -> Candidate:
        """The same with these knobs, in the place of its own where it has them."""
        return self.make(self.family, self.predicted_s, **{**dict(self.knobs), **knobs})

    def to_json(self) -> str:
        return json.dumps({"family": self.family, "knobs": dict(self.knobs)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Candidate:
        """Older versions wrote the family as `template`."""
        data = json.loads(text)
        return cls.make(data["family"] if "family" in data else data["template"], **data["knobs"])

    def __str__(self) -> str:
        return f"{self.family}({', '.join(f'{name}={value}' for name, value in self.knobs)})"


@cache
def _types(kind: type) -> dict[str, tuple[type, ...]]:
    """What may be given for each field of a dataclass of knobs."""
    hints = get_type_hints(kind)
    return {f.name: getattr(hints[f.name], "__args__", (hints[f.name],)) for f in fields(kind)}


DEFAULT = Candidate("default")
"""The plain parallel and vectorised loop nest every gain is reported against."""
