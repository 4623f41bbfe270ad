"""What is said of a candidate beside its family's knobs: which instances its kernel is for, and how its tiles end."""

from __future__ import annotations

from subtune.core.candidate import DEFAULT, Candidate

_OVERLAPS, _ALONE = "overlaps", "alone"


def overlapped(candidate: Candidate) -> Candidate:
    """The candidate of the same tiles, the last of which overlaps another: see `overlap`."""
    return _marked(candidate, _OVERLAPS)


def alone(candidate: Candidate) -> Candidate:
    """The candidate for the instance that has one element of every extent, and no other: see `serve`."""
    return _marked(candidate, _ALONE)


def is_alone(candidate: Candidate) -> bool:
    return bool(candidate.get(_ALONE))


def of_family(candidate: Candidate) -> Candidate:
    """The candidate as its family knows it."""
    kept = tuple(knob for knob in candidate.knobs if knob[0] not in (_OVERLAPS, _ALONE))
    return Candidate(candidate.family, kept, candidate.predicted_s)


def _marked(candidate: Candidate, mark: str) -> Candidate:
    if candidate.family == DEFAULT.family:
        return candidate
    return candidate.having(**{mark: True})
