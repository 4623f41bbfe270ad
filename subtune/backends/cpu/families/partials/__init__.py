"""Reductions of any axes, in pieces and in vectors: whole tensors, all but the outermost axis, every other axis.

A long innermost run that is reduced is summed in registers (`rows`), all else in a table in the cache (`table`). Of
results that are too few for all threads, each thread computes a piece. What follows a reduction, and each stage of a
norm, is a loop nest of its own; with the knob `whole` all stages of a row follow one another, while it is in the cache.
The functions are written, not scheduled: extents need not divide by anything.
"""

from subtune.backends.base import Family
from subtune.backends.cpu.families.partials.candidates import Knobs, accepts, candidates
from subtune.backends.cpu.families.partials.schedule import schedule
from subtune.backends.cpu.family import PER_ROW, SERIAL, STREAMED

FAMILY = Family("partials", 2, Knobs, accepts, candidates, schedule, (SERIAL, STREAMED, PER_ROW))
