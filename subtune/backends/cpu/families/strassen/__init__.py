"""Strassen's algorithm for matrix products and convolutions whose weights are constant."""

from subtune.backends.base import Family
from subtune.backends.cpu.families.strassen import candidates, schedule
from subtune.backends.cpu.family import DOUBTED

FAMILY = Family(
    "strassen", 4, candidates.Knobs, candidates.accepts, candidates.candidates, schedule.schedule, (DOUBTED,)
)
