"""Strassen's algorithm on CUDA cores."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.strassen.candidates import accepts, candidates
from subtune.backends.cuda.families.strassen.schedule import StrassenKnobs, schedule

FAMILY = Family("cuda.strassen", 1, StrassenKnobs, accepts, candidates, schedule)
