"""A network's first convolution on Hopper, of few channels."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.stem.candidates import accepts, candidates
from subtune.backends.cuda.families.stem.plan import StemKnobs
from subtune.backends.cuda.families.stem.schedule import schedule

FAMILY = Family("cuda.stem", 5, StemKnobs, accepts, candidates, schedule)
