"""A product that uses numbers of its rows, or takes moments of what it stores, in one kernel, on Hopper."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.wgmma.schedule import WgmmaKnobs
from subtune.backends.cuda.families.wgmma_rows.candidates import accepts, candidates
from subtune.backends.cuda.families.wgmma_rows.schedule import schedule

FAMILY = Family("cuda.wgmma_rows", 3, WgmmaKnobs, accepts, candidates, schedule)
