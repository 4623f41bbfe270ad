"""Depthwise convolution and pooling."""

from subtune.backends.base import Family
from subtune.backends.cuda.families.window.candidates import accepts, candidates
from subtune.backends.cuda.families.window.schedule import WindowKnobs, schedule

FAMILY = Family("cuda.window", 3, WindowKnobs, accepts, candidates, schedule)
