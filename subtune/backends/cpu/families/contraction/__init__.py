"""GEMM, batch matmul and direct convolution, blocked for registers and caches."""

from subtune.backends.base import Family
from subtune.backends.cpu.families.contraction import candidates, schedule
from subtune.backends.cpu.family import SERIAL

FAMILY = Family(
    "contraction", 3, candidates.Knobs, candidates.accepts, candidates.candidates, schedule.schedule, (SERIAL,)
)
