"""Vectors times a matrix of 4-bit weights, on tensor cores."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.gemv_packed.candidates import accepts, candidates
from subtune.backends.cuda.families.gemv_packed.schedule import schedule
from subtune.backends.cuda.families.gemv_packed.tiling import PackedTile

FAMILY = Family("cuda.gemv_packed", 1, PackedTile, accepts, candidates, schedule)
