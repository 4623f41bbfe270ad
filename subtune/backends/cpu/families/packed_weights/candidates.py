"""Which products are this family's, and its tiles: panels of one to four vectors of columns, all rows at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import stream_s
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.packed_weights.words import NIBBLE, WORD
from subtune.backends.cpu.family import MODE, REGISTERS, CPUProblem
from subtune.backends.cpu.math import nibble_ops
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


@dataclass(frozen=True, slots=True)
class Knobs:
    """Vectors of columns that a panel has."""

    vectors: int = field(metadata=REGISTERS)
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


def candidates(problem: CPUProblem) -> list[Candidate]:
    """As many sums in registers as hide the latency of a multiply-add, and as there are registers for."""
    found = anchored(problem.workload, packed_product)
    assert not isinstance(found, NotApplicable), "accepted"
    info, device, workload = found[2], problem.device, problem.workload
    lanes = device.lanes()
    streams = device.comes_from_memory(info.weight_bytes)
    memory_s = workload.nbytes / device.dram_bytes_per_s if streams else stream_s(workload.nbytes, device)
    made = []
    for vectors in _VECTORS:
        panel = vectors * lanes
        if vectors > 1 and (panel >= 2 * info.columns or vectors * info.rows > device.vector_registers // 2):
            continue
        panels = ceil(info.columns / panel)
        seconds = panels * _panel_cycles(info, vectors, device) / device.cycles_per_s / device.threads
        whole = max(seconds, memory_s) * imbalance(panels, device) + 0.1 * seconds
        # the hardware foresees a stream, too: measuring decides
        made += [Candidate.of(NAME, Knobs(vectors, ahead), whole) for ahead in ((False, True) if streams else (False,))]
    return made


def _panel_cycles(info: PackedProduct, vectors: int, device: CPUModel) -> float:
    """Multiply-adds wait for one another, or for their units; with what makes floats, for all units."""
    products = vectors * info.rows / device.fma_per_cycle
    of_float = _LOOKED_UP if has_nibble_table(info, device) else _OF_FIELD
    instructions = vectors * (info.rows + of_float) / (_OTHER_UNITS * device.fma_per_cycle)
    of_field = max(products, instructions, float(device.fma_latency))
    return info.length * of_field + info.blocks * vectors * info.rows * _OF_BLOCK
