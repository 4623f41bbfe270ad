"""Winograd's algorithm for 3x3 convolutions."""

from subtune.backends.base import Family
from subtune.backends.cpu.families.winograd import candidates, schedule

FAMILY = Family("winograd", 7, candidates.Knobs, candidates.accepts, candidates.candidates, schedule.schedule)
