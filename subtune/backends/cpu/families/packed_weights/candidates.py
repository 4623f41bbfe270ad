"""Which products are this family's, two ways to multiply, and tiles: panels of one to four vectors of columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from math import ceil

from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import stream_s
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.packed_weights.digits import DIGITS, LONGEST
from subtune.backends.cpu.families.packed_weights.words import NIBBLE, WORD
from subtune.backends.cpu.family import ALGORITHM, MODE, REGISTERS, CPUProblem
from subtune.backends.cpu.math import nibble_ops
from subtune.backends.cpu.math.byte_dots import ByteDot, byte_dot
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.patterns.packed_product import PackedProduct, packed_product
from subtune.patterns.rows import Rowwise
from subtune.patterns.stages import anchored

NAME = "packed_weights"
MAX_ROWS = 16
_VECTORS = (1, 2, 4)
_OF_FIELD, _LOOKED_UP = 2.125, 1.875
"""Instructions that make floats of a vector of fields: selected, subtracted; and a shift for some. Of eight nibbles two
take one where they are looked up."""
_OTHER_UNITS = 1.5
"""Vector instructions of any kind that begin in the time of a multiply-add. For 4096 x 4096 weights of 4 bits from L3,
two threads of a Zen 4 take 310 us; this says 310."""
_OF_BLOCK = 4.0
"""For every vector and row of a block: scaled, added, begun anew."""
_OF_HALVES, _OF_DIGITS_BLOCK = 3.0, 6.0
"""Instructions that part a vector of words; and what is done for a block where x is of digits."""
_OWN_REGISTERS, _SHARED_REGISTERS = 6, 12
"""Beside the sums: of weights, masks, and what is computed; where several vectors share digits, of these, too."""
_LEAST_AT_ONCE = 4
"""Rows that are worth reading a block of weights from the nearest cache, and taking it apart."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """Vectors of columns that a panel has."""

    vectors: int = field(metadata=REGISTERS)
    digits: bool = field(default=False, metadata=ALGORITHM)
    """x is multiplied as integers of three bytes."""
    ahead: bool = field(default=False, metadata=MODE)
    """Weights are asked for some time before they are needed."""
    serial: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    if not any("int8" in arg.dtype for arg in problem.workload.args):  # cheaper than a look at the TIR
        return "no bytes"
    if not isinstance(problem.pattern, Rowwise):
        return "no sums along rows"
    found = anchored(problem.workload, packed_product)
    return found.reason if isinstance(found, NotApplicable) else _obstacle(found[2])


def _obstacle(info: PackedProduct) -> str:
    if info.dtype != "float32" or info.acc != "float32":
        return f"weights of {info.dtype} that are summed in {info.acc}"
    if info.rows > MAX_ROWS:
        return f"{info.rows} rows, at most {MAX_ROWS}"
    if info.blocks > 1 and info.group % (WORD // info.bits):
        return f"blocks of {info.group}, which are no whole words"
    return ""


def has_nibble_table(info: PackedProduct, device: CPUModel) -> bool:
    """Whether some fields become floats by a table that is a register."""
    return info.bits == NIBBLE and nibble_ops.FEATURE in device.features and device.lanes() == nibble_ops.LANES


def dot_of(device: CPUModel) -> ByteDot | None:
    """The processor's product of digits and nibbles, if it takes one instruction."""
    dot = byte_dot("uint8", device.features, device.lanes())
    return dot if dot is not None and dot.cost == 1.0 else None


def digits_obstacle(info: PackedProduct, vectors: int, problem: CPUProblem) -> str:
    if problem.numerics.exact:
        return "rounds otherwise than the model says"
    if info.bits != NIBBLE:
        return f"weights of {info.bits} bits"
    if info.group > LONGEST:
        return f"blocks of {info.group}, at most {LONGEST}"
    if dot_of(problem.device) is None:
        return "no instruction that multiplies bytes"
    at_once = rows_of_digits(info, vectors, problem.device)
    return "" if at_once >= min(info.rows, _LEAST_AT_ONCE) else "more sums than registers"


def rows_of_digits(info: PackedProduct, vectors: int, device: CPUModel) -> int:
    """How many rows have their sums in registers at once, the same number every time; 0 if none has."""
    own = _OWN_REGISTERS if vectors == 1 else _SHARED_REGISTERS
    most = (device.vector_registers - own) // (DIGITS * vectors)
    return max((rows for rows in range(1, min(most, info.rows) + 1) if info.rows % rows == 0), default=0)


def candidates(problem: CPUProblem) -> list[Candidate]:
    """As many sums in registers as hide the latency of a multiply-add, and as there are registers for."""
    found = anchored(problem.workload, packed_product)
    assert not isinstance(found, NotApplicable), "accepted"
    info, device, workload = found[2], problem.device, problem.workload
    lanes = device.lanes()
    streams = device.comes_from_memory(info.weight_bytes)
    memory_s = workload.nbytes / device.dram_bytes_per_s if streams else stream_s(workload.nbytes, device)
    made = []
    for vectors, digits in product(_VECTORS, (False, True)):
        panel = vectors * lanes
        if digits and digits_obstacle(info, vectors, problem):
            continue
        at_once = rows_of_digits(info, vectors, device) if digits else info.rows
        if vectors > 1 and (panel >= 2 * info.columns or vectors * at_once > device.vector_registers // 2):
            continue
        panels, cycles = ceil(info.columns / panel), _cycles_of_digits if digits else _panel_cycles
        seconds = panels * cycles(info, vectors, device) / device.cycles_per_s / device.threads
        whole = max(seconds, memory_s) * imbalance(panels, device) + 0.1 * seconds
        # the hardware foresees a stream, too: measuring decides
        for ahead in (False, True) if streams and at_once == info.rows else (False,):
            made.append(Candidate.of(NAME, Knobs(vectors, digits, ahead), whole))
    return made


def _panel_cycles(info: PackedProduct, vectors: int, device: CPUModel) -> float:
    """Multiply-adds wait for one another, or for their units; with what makes floats, for all units."""
    products = vectors * info.rows / device.fma_per_cycle
    of_float = _LOOKED_UP if has_nibble_table(info, device) else _OF_FIELD
    instructions = vectors * (info.rows + of_float) / (_OTHER_UNITS * device.fma_per_cycle)
    of_field = max(products, instructions, float(device.fma_latency))
    return info.length * of_field + info.blocks * vectors * info.rows * _OF_BLOCK


def _cycles_of_digits(info: PackedProduct, vectors: int, device: CPUModel) -> float:
    """The same for words of eight nibbles, whose halves are each multiplied with every digit, one sum for each."""
    rows = rows_of_digits(info, vectors, device)
    products = 2 * DIGITS * vectors * rows / device.fma_per_cycle
    instructions = vectors * (2 * DIGITS * rows + _OF_HALVES) / (_OTHER_UNITS * device.fma_per_cycle)
    of_word = info.rows / rows * max(products, instructions, 2.0 * device.fma_latency)
    words = info.length * NIBBLE / WORD
    return words * of_word + info.blocks * vectors * info.rows * _OF_DIGITS_BLOCK
