"""Reductions of several values at once, such as the largest element and where it is: a thread for every result."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.each.candidates import accepts, candidates
from subtune.backends.cuda.families.each.schedule import EachKnobs, schedule

FAMILY = Family("cuda.each", 1, EachKnobs, accepts, candidates, schedule)
