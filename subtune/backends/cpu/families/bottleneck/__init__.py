"""1x1 convolution, depthwise convolution and 1x1 convolution in one kernel."""

from subtune.backends.base import Family
from subtune.backends.cpu.families.bottleneck import candidates, schedule

FAMILY = Family("bottleneck", 1, candidates.Knobs, candidates.accepts, candidates.candidates, schedule.schedule)
