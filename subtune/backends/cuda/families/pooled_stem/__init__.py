"""A network's first convolution with the max pooling behind it, on Hopper."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.pooled_stem.candidates import accepts, candidates
from subtune.backends.cuda.families.pooled_stem.schedule import schedule
from subtune.backends.cuda.families.stem.plan import StemKnobs

FAMILY = Family("cuda.pooled_stem", 3, StemKnobs, accepts, candidates, schedule)
