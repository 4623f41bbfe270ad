"""Candidates for split-K: chunks of k whose slices of A and B stay in L2, so that memory is read once."""

from __future__ import annotations

from math import ceil

from subtune.backends.cpu.bandwidth import LOADS_PER_CYCLE, bytes_per_cycle
from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import Candidate
from subtune.core.workload import dtype_bits
from subtune.patterns.contraction import Contraction

_MIN_CHUNK = 128  # elements of k: shorter ones store partial results more often than they compute
_CHUNKS_TRIED = 4
_START_CYCLES = 30.0  # of a micro-kernel, beside the store of its partial results
_UNFORESEEN = 1.5  # weights from memory in the order of chunks, without a prefetch


def split_k_candidates(anchor: Contraction, device: CPUModel) -> list[Candidate]:
    """Empty for anything but a matrix times a constant matrix whose k axis is longer than its others."""
    if [axis.role for axis in anchor.axes] != ["m", "n", "k"] or not anchor.b.is_constant:
        return []
    m, n, k = (axis.extent for axis in anchor.axes)
    lanes = device.lanes(dtype_bits(anchor.acc_dtype))
    if k < 2 * max(m, n) or n % lanes:
        return []
    item = dtype_bits(anchor.b.dtype) // 8
    fits = [kc for kc in range(_MIN_CHUNK, k // 2 + 1) if k % kc == 0 and (m + n) * kc * item <= device.l2_bytes]
    found = []
    for kc in fits[-_CHUNKS_TRIED:]:
        for vectors in (v for v in (1, 2, 3, 4, 6, 8) if n % (v * lanes) == 0):
            for mr in (r for r in range(1, min(m, 28) + 1) if m % r == 0):
                if mr * vectors + vectors + 1 <= device.vector_registers:
                    seconds = _predict(m, n, k, kc, mr, vectors, item, lanes, device)
                    found.append(Candidate.make("split_k", seconds, mr=mr, nr=vectors * lanes, kc=kc))
    return found


def _predict(m: int, n: int, k: int, kc: int, mr: int, vectors: int, item: int, lanes: int, device: CPUModel) -> float:
    """Seconds: the products; A and B once from where they lie; partial results written and read once."""
    chunks = k // kc
    per_k = max(mr * vectors / device.fma_per_cycle, (mr + vectors) / LOADS_PER_CYCLE, float(device.fma_latency))
    products = k * (m / mr) * (n / (vectors * lanes)) * per_k
    operands = (m + n) * k * item
    partials = chunks * m * n * 4
    products += chunks * (m / mr) * (n / (vectors * lanes)) * (_START_CYCLES + mr * vectors)
    moved = operands / bytes_per_cycle(operands, device) + 2 * partials / bytes_per_cycle(partials, device)
    if device.comes_from_memory(n * k * item):
        moved += (_UNFORESEEN - 1.0) * n * k * item / bytes_per_cycle(max(n * k * item, device.l2_bytes), device)
    imbalance = ceil(chunks / device.threads) * device.threads / chunks
    return (products + moved) * imbalance / device.threads / device.cycles_per_s
