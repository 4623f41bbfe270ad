"""A product whose rows are normalised, in one kernel, on Hopper."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.wgmma_normed.candidates import accepts, candidates
from subtune.backends.cuda.families.wgmma_normed.schedule import NormedKnobs, schedule

FAMILY = Family("cuda.wgmma_normed", 3, NormedKnobs, accepts, candidates, schedule)
