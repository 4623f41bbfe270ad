"""Planes of an image put side by side."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.interleaved.candidates import accepts, candidates
from subtune.backends.cuda.families.interleaved.schedule import InterleavedKnobs, schedule

FAMILY = Family("cuda.interleaved", 1, InterleavedKnobs, accepts, candidates, schedule)
"""Candidates for planes that become pixels on a GPU: rows to a block, pixels to a thread, threads."""
