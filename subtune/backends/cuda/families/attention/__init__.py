"""Attention in one kernel on Hopper's tensor cores: scores never leave registers."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.attention.candidates import accepts, candidates
from subtune.backends.cuda.families.attention.schedule import schedule
from subtune.backends.cuda.families.attention.tiling import Knobs

FAMILY = Family("cuda.attention", 3, Knobs, accepts, candidates, schedule)
