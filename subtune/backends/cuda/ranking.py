"""In which order the candidates of all families are tried: by prediction, each implementation with a share."""

from __future__ import annotations

from collections.abc import Sequence

from subtune.core.candidate import Candidate

_HOPE = 2.5
"""Times the best prediction: beyond, no error of the model makes up for it."""


def rank(found: Sequence[Candidate], topk: int) -> tuple[Candidate, ...]:
    """The `topk` candidates to try, the one predicted fastest first, every implementation with hope among them."""
    ranked = sorted(found, key=lambda c: (c.predicted_s, c.family, c.knobs))
    return tuple(_every_implementation(ranked, topk)[:topk])


def _every_implementation(ranked: list[Candidate], topk: int) -> list[Candidate]:
    """`ranked`, with the best few of every implementation among the first `topk`.

    The model compares two tiles of one implementation well, and two implementations less well: each gets a share, if it
    has any hope.
    """
    share = max(1, topk // 5)
    limit_s = _HOPE * min((candidate.predicted_s for candidate in ranked), default=0.0)
    seen: dict[str, int] = {}
    first: list[Candidate] = []
    rest: list[Candidate] = []
    for candidate in ranked:
        seen[candidate.family] = seen.get(candidate.family, 0) + 1
        has_hope = seen[candidate.family] <= share and candidate.predicted_s <= limit_s
        (first if has_hope else rest).append(candidate)
    room = max(0, topk - len(first))
    return sorted(first + rest[:room], key=lambda c: (c.predicted_s, c.family, c.knobs)) + rest[room:]
