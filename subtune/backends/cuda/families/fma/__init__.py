"""Products and convolutions of float32 on CUDA cores, A and B as they lie in memory."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.fma.candidates import accepts, candidates
from subtune.backends.cuda.families.fma.schedule import schedule
from subtune.backends.cuda.model.core_tiles import FmaTile

FAMILY = Family("cuda.fma", 5, FmaTile, accepts, candidates, schedule)
