"""Two contractions fused over their rows: feed-forward blocks, attention."""

from subtune.backends.base import Family
from subtune.backends.cpu.families.chain import candidates, schedule
from subtune.backends.cpu.family import SERIAL

FAMILY = Family("chain", 3, candidates.Knobs, candidates.accepts, candidates.candidates, schedule.schedule, (SERIAL,))
