"""A matrix times one to eight vectors."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.gemv.candidates import accepts, candidates
from subtune.backends.cuda.families.gemv.schedule import GemvKnobs, schedule

FAMILY = Family("cuda.gemv", 2, GemvKnobs, accepts, candidates, schedule)
