"""Two products that are added up, in one kernel, on Hopper."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.wgmma.schedule import WgmmaKnobs
from subtune.backends.cuda.families.wgmma_summed.candidates import accepts, candidates
from subtune.backends.cuda.families.wgmma_summed.schedule import schedule

FAMILY = Family("cuda.wgmma_summed", 2, WgmmaKnobs, accepts, candidates, schedule)
