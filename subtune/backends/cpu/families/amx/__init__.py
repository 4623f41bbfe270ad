"""Contractions of bfloat16, of float32 in parts, and of bytes, on the tile registers of AMX."""

from subtune.backends.base import Family
from subtune.backends.cpu.families.amx import candidates, schedule
from subtune.backends.cpu.family import SERIAL

FAMILY = Family("amx", 5, candidates.Knobs, candidates.accepts, candidates.candidates, schedule.schedule, (SERIAL,))
IN_PARTS = Family(
    "amx_parts",
    5,
    candidates.Knobs,
    candidates.accepts_in_parts,
    candidates.candidates,
    schedule.schedule_in_parts,
    (SERIAL,),
)
OF_BYTES = Family(
    "amx_int8",
    4,
    candidates.Knobs,
    candidates.accepts_bytes,
    candidates.candidates,
    schedule.schedule_bytes,
    (SERIAL,),
)
