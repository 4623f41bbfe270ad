"""Contractions of bfloat16, and of float32 in parts, on the tile registers of AMX."""

from subtune.backends.base import Family
from subtune.backends.cpu.families.amx import candidates, schedule
from subtune.backends.cpu.family import SERIAL

FAMILY = Family("amx", 2, candidates.Knobs, candidates.accepts, candidates.candidates, schedule.schedule, (SERIAL,))
IN_PARTS = Family(
    "amx_parts",
    2,
    candidates.Knobs,
    candidates.accepts_in_parts,
    candidates.candidates,
    schedule.schedule_in_parts,
    (SERIAL,),
)
