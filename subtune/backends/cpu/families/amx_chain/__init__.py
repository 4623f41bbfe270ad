"""Two contractions of bfloat16 fused over their rows, on the tile registers of AMX: attention."""

from subtune.backends.base import Family
from subtune.backends.cpu.families.amx_chain import candidates, schedule
from subtune.backends.cpu.family import SERIAL

FAMILY = Family(
    "amx_chain", 2, candidates.Knobs, candidates.accepts, candidates.candidates, schedule.schedule, (SERIAL,)
)
