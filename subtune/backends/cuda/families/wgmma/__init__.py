"""Hopper's warp-specialised products."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.wgmma.candidates import accepts, candidates
from subtune.backends.cuda.families.wgmma.schedule import WgmmaKnobs, schedule

FAMILY = Family("cuda.wgmma", 10, WgmmaKnobs, accepts, candidates, schedule)
