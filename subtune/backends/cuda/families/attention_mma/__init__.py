"""Attention on mma.sync: any tensor cores from Ampere on, and few rows over many keys, which blocks share."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.attention_mma.candidates import accepts, candidates
from subtune.backends.cuda.families.attention_mma.schedule import schedule
from subtune.backends.cuda.families.attention_mma.tiling import Knobs

FAMILY = Family("cuda.attention_mma", 9, Knobs, accepts, candidates, schedule)
