"""A decoder's cache that is kept in place: an input that comes out with more rows behind it."""

from __future__ import annotations

from dataclasses import dataclass

COPIED, IN_PLACE = "copied", "in-place"
"""What a user may want of a model's caches."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Output number `output` is input number `input` with new rows behind it, along `axis`.

    The program does not read that input. It writes the new rows, and reads all, in the memory of the output, which has
    room for `capacity` rows along the axis and holds the rows of the input when a run begins.
    """

    input: int
    output: int
    axis: int
    capacity: int
