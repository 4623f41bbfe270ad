"""Elementwise subgraphs in runs of 16 bytes."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.elementwise.candidates import accepts, candidates
from subtune.backends.cuda.families.elementwise.schedule import ElementwiseKnobs, schedule

FAMILY = Family("cuda.elementwise", 3, ElementwiseKnobs, accepts, candidates, schedule)
