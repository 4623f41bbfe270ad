"""Grouped convolutions as batches of products, on tensor cores or CUDA cores."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.grouped.candidates import accepts, mma_candidates, simt_candidates
from subtune.backends.cuda.families.grouped.schedule import MmaGroups, SimtGroups, schedule_mma, schedule_simt

MMA = Family("cuda.grouped_mma", 4, MmaGroups, accepts, mma_candidates, schedule_mma)
SIMT = Family("cuda.grouped_simt", 2, SimtGroups, accepts, simt_candidates, schedule_simt)
