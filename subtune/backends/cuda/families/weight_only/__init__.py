"""A few rows of halves times a matrix of constant 4 or 8-bit weights, on tensor cores."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.gemv_packed.candidates import accepts
from subtune.backends.cuda.families.weight_only.candidates import candidates
from subtune.backends.cuda.families.weight_only.schedule import schedule
from subtune.backends.cuda.families.weight_only.tiling import WeightOnlyTile

FAMILY = Family("cuda.weight_only", 2, WeightOnlyTile, accepts, candidates, schedule)
