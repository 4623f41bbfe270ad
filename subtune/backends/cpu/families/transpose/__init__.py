"""Transposes, and elementwise subgraphs that read an operand transposed."""

from subtune.backends.base import Family
from subtune.backends.cpu.families.transpose import candidates, schedule
from subtune.backends.cpu.family import SERIAL, STREAMED

FAMILY = Family(
    "transpose", 2, candidates.Knobs, candidates.accepts, candidates.candidates, schedule.schedule, (SERIAL, STREAMED)
)
