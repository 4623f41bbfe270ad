"""One complete schedule decision for a workload: plain data, so that it can be stored, compared and replayed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

Knob = int | str | bool

_OUTER_LOOPS = ("mt", "order")


@dataclass(frozen=True, slots=True)
class Candidate:
    """`template` names a schedule family of `subtune.templates`; `knobs` are its decisions, sorted by name.

    `predicted_s` is the policy's estimate of the run time in seconds: it orders candidates and is reported
    beside the measurement, and takes no part in equality.
    """

    family: str
    knobs: tuple[tuple[str, Knob], ...] = ()
    predicted_s: float = field(default=0.0, compare=False)

    @classmethod
    def make(cls, family: str, predicted_s: float = 0.0, **knobs: Knob) -> Candidate:
        return cls(family, tuple(sorted(knobs.items())), predicted_s)

    def __getitem__(self, name: str) -> Knob:
        return dict(self.knobs)[name]

    def get(self, name: str) -> Knob | None:
        """The knob `name`, None where the candidate leaves it out."""
        return dict(self.knobs).get(name)

    @property
    def is_serial(self) -> bool:
        """Whether the kernel runs on the calling thread alone, as very short ones should."""
        return bool(dict(self.knobs).get("serial", False))

    @property
    def tile(self) -> tuple[object, ...]:
        """All of it but the loops around the tile; what the model leaves out is much the same for all that share it."""
        return (self.family, *(knob for knob in self.knobs if knob[0] not in _OUTER_LOOPS))

    def to_json(self) -> str:
        return json.dumps({"family": self.family, "knobs": dict(self.knobs)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Candidate:
        data = json.loads(text)
        return cls.make(data["family"], **data["knobs"])

    def __str__(self) -> str:
        return f"{self.family}({', '.join(f'{name}={value}' for name, value in self.knobs)})"


DEFAULT = Candidate("default")
"""The plain parallel and vectorised loop nest every gain is reported against."""
