"""Products on tensor cores by `mma.sync`."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.mma.candidates import accepts, candidates
from subtune.backends.cuda.families.mma.schedule import MmaKnobs, schedule

FAMILY = Family("cuda.mma", 6, MmaKnobs, accepts, candidates, schedule)
