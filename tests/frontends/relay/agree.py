"""Cases of one test file: run together, compared one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.frontends.relay.run import Case, evaluate_many

RNG = np.random.default_rng(11)


def floats(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


def ints(dtype: str, *dims: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(max(limits.min, -128), min(limits.max, 255), dims).astype(dtype)


@dataclass(frozen=True, slots=True)
class Agree:
    """One call of `op` and what it has to give: the array (or arrays) of NumPy, dtype included."""

    name: str
    op: str
    args: Sequence[Any]
    expected: Any
    attrs: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 1e-4
    atol: float = 1e-4


class Together:
    """The results of many cases, from one build, made when the first is asked for."""

    def __init__(self, cases: Sequence[Agree]) -> None:
        self.cases = {case.name: case for case in cases}
        assert len(self.cases) == len(cases), "two cases have one name"
        self._found: dict[str, list[np.ndarray]] = {}

    def check(self, name: str) -> None:
        if not self._found:
            made = evaluate_many([Case(c.op, c.args, c.attrs) for c in self.cases.values()])
            self._found = dict(zip(self.cases, made, strict=True))
        case = self.cases[name]
        expected = case.expected if isinstance(case.expected, (list, tuple)) else [case.expected]
        found = self._found[name]
        assert len(found) == len(expected)
        for got, want in zip(found, expected, strict=True):
            want = np.asarray(want)
            assert got.shape == want.shape
            assert got.dtype == want.dtype
            if want.dtype.kind in "iub":
                np.testing.assert_array_equal(got, want)
            else:
                np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)

    def parameters(self) -> Any:
        return pytest.mark.parametrize("name", list(self.cases))
