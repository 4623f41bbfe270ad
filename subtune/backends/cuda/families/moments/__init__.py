"""Mean and variance of a norm in kernels of many blocks."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.moments.candidates import accepts, candidates
from subtune.backends.cuda.families.moments.schedule import MomentsTile, schedule

FAMILY = Family("cuda.moments", 2, MomentsTile, accepts, candidates, schedule)
