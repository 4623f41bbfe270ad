"""Winograd's algorithm for 3x3 convolutions on CUDA cores."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.winograd.candidates import accepts, candidates
from subtune.backends.cuda.families.winograd.schedule import WinogradKnobs, schedule

FAMILY = Family("cuda.winograd", 2, WinogradKnobs, accepts, candidates, schedule)
