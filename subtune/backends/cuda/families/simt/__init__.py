"""Products on CUDA cores in register tiles."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.simt.candidates import accepts, candidates
from subtune.backends.cuda.families.simt.schedule import schedule
from subtune.backends.cuda.model.core_tiles import SimtTile

FAMILY = Family("cuda.simt", 3, SimtTile, accepts, candidates, schedule)
