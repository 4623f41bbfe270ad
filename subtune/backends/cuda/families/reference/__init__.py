"""The workload in float64: what the results of the others are compared with."""

from subtune.backends.base import Family, NoKnobs, proposes_nothing
from subtune.backends.cuda.families.reference.schedule import schedule

FAMILY = Family("cuda.reference", 2, NoKnobs, proposes_nothing, lambda problem: (), schedule)
