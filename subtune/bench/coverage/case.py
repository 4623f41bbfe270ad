"""One case of the coverage suite as plain data: it travels to every process, and is built there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from subtune.bench.coverage.dialect import Shape

CASE_SUFFIX = ".case.json"
"""Of the file beside a case's model, which says what case it is."""
Sizes = Mapping[str, Any]
"""What a family drew: numbers, words and tuples of numbers, by name."""


@dataclass(frozen=True, slots=True)
class Case:
    """Case `index` of `seed`.

    Attributes:
        family: a key of `grammar.FAMILIES`.
        sizes: what the family drew.
        dtype: of inputs and weights: float32, float16, bfloat16.
        epilogue: operators after the family's own: names of `dialect.UNARY`, `scale`, `residual`.
        out: shape of the family's own output, where there is an epilogue.
    """

    seed: int
    index: int
    family: str
    sizes: Sizes
    dtype: str
    epilogue: tuple[str, ...] = ()
    out: Shape = ()

    @property
    def name(self) -> str:
        """Readable, and equal for equal cases of one seed only."""
        sizes = " ".join(f"{key}={_short(value)}" for key, value in self.sizes.items())
        return " ".join(filter(None, (f"{self.index:03d}", self.family, sizes, "+".join(self.epilogue), self.dtype)))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        data = json.loads(text)
        sizes = {key: tuple(value) if isinstance(value, list) else value for key, value in data["sizes"].items()}
        return cls(**{**data, "sizes": sizes, "epilogue": tuple(data["epilogue"]), "out": tuple(data["out"])})


def _short(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
