"""Bytes that a kernel was given, compared with what they were."""

from __future__ import annotations

import numpy as np

from subtune.measure.guarded import are_same


def test_bytes_are_compared_to_the_last() -> None:
    one = np.arange(21, dtype=np.uint8)
    assert are_same(one, one.copy())
    assert not are_same(one, one[:20])
    for at in (0, 15, 16, 20):
        other = one.copy()
        other[at] += 1
        assert not are_same(one, other)
