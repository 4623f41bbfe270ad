"""Dlight's schedule, which every gain is reported against."""

from subtune.backends.base import Family, NoKnobs, proposes_nothing
from subtune.backends.cuda.families.default.schedule import schedule

FAMILY = Family("default", 3, NoKnobs, proposes_nothing, lambda problem: (), schedule)
