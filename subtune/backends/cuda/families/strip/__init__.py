"""Depthwise convolution and pooling by strips: large windows, whose loops stay loops."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.strip.candidates import accepts, candidates
from subtune.backends.cuda.families.strip.schedule import StripKnobs, schedule

FAMILY = Family("cuda.strip", 2, StripKnobs, accepts, candidates, schedule)
