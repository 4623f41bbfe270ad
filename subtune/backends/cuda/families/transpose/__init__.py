"""Transposes by tiles in shared memory."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.transpose.candidates import accepts, candidates
from subtune.backends.cuda.families.transpose.schedule import TransposeKnobs, schedule

FAMILY = Family("cuda.transpose", 1, TransposeKnobs, accepts, candidates, schedule)
