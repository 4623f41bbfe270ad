"""Cases of single operators with the results that Relay's documentation promises: many checked by one build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from subtune.frontends.onnx.ops.node import Refused
from tests.frontends.relay.run import Case, evaluate, evaluate_many

RNG = np.random.default_rng(5)


@dataclass(frozen=True, slots=True)
class Expect:
    """A call and its results by numpy; `like` is one array or a sequence of them. Dtypes count."""

    op: str
    args: Sequence[Any]
    like: Any
    attrs: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-6


def floats(*dims: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(dims).astype(dtype)


def ints(*dims: int, low: int = -9, high: int = 10, dtype: str = "int32") -> np.ndarray:
    return RNG.integers(low, high, dims).astype(dtype)


def check(cases: Sequence[Expect]) -> None:
    """Runs all cases from one build and names every one that differs."""
    found = evaluate_many([Case(c.op, c.args, c.attrs) for c in cases])
    problems = []
    for case, got in zip(cases, found, strict=True):
        like = [case.like] if isinstance(case.like, np.ndarray | np.generic) else list(case.like)
        title = f"{case.op} {dict(case.attrs)}"
        if len(got) != len(like):
            problems.append(f"{title}: {len(got)} results instead of {len(like)}")
            continue
        for g, e in zip(got, like, strict=True):
            if (g.shape, g.dtype) != (e.shape, e.dtype):
                problems.append(f"{title}: {g.dtype}{list(g.shape)} instead of {e.dtype}{list(e.shape)}")
                continue
            try:
                np.testing.assert_allclose(g, e, rtol=case.rtol, atol=case.atol)
            except AssertionError as e:
                problems.append(f"{title}: {e}")
    assert not problems, "\n".join(problems)


def refused(op: str, args: Sequence[Any], attrs: Mapping[str, Any] | None, reason: str) -> None:
    """The call is refused for `reason`, a part of the text."""
    with pytest.raises(Refused, match=reason):
        evaluate(op, args, attrs or {})
