"""A few rows times weights of 4 or 8 bits, which become floats in registers: bound by how fast their bits are read."""

from subtune.backends.base import Family
from subtune.backends.cpu.families.packed_weights.candidates import NAME, Knobs, accepts, candidates
from subtune.backends.cpu.families.packed_weights.schedule import schedule
from subtune.backends.cpu.family import SERIAL

FAMILY = Family(NAME, 3, Knobs, accepts, candidates, schedule, (SERIAL,))
