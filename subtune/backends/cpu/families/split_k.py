"""Split-K GEMM with a constant B, for reductions so long that no panel of B stays in a cache.

    for chunks of k (parallel):  for n tile, m tile:  micro-kernel over the chunk  ->  partial[chunk, m, n]
    for m (parallel):  sum of the partial results, epilogue

A chunk of A and of B stays in L2 while all of its tiles are computed, so each is read from memory once.
Source: the stream and split-K decompositions of GPU GEMMs; here for the sake of the caches, and of parallelism when
the output is small.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Family
from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import bytes_per_cycle, tile_load_cycles
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.contraction.schedule import packed_index, packing_of
from subtune.backends.cpu.families.products import fma_obstacle
from subtune.backends.cpu.family import REGISTERS, CPUProblem
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import Stages, anchored
from subtune.tir.prepack import PREPROC_ATTR, split_prepack
from subtune.tir.tile import vectorize_tile

_MIN_CHUNK = 128  # elements of k: shorter ones store partial results more often than they compute
_CHUNKS_TRIED = 4
_START_CYCLES = 30.0  # of a micro-kernel, beside the store of its partial results


@dataclass(frozen=True, slots=True)
class Knobs:
    """A tile of `mr` x `nr`, chunks of `kc` of the reduced axis."""

    mr: int = field(metadata=REGISTERS)
    nr: int = field(metadata=REGISTERS)
    kc: int


def accepts(problem: CPUProblem) -> str:
    return fma_obstacle(problem) or _obstacle(problem.pattern)


def _obstacle(anchor: Contraction) -> str:
    is_matrices = [axis.role for axis in anchor.axes] == ["m", "n", "k"]
    return "" if is_matrices and anchor.b.is_constant else "split-K is for a matrix times a constant matrix"


def candidates(problem: CPUProblem) -> list[Candidate]:
    """None but for a k axis that is longer than the others: chunks whose slices of A and B stay in L2."""
    anchor, device = problem.pattern, problem.device
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
                    found.append(Candidate.of("split_k", Knobs(mr, vectors * lanes, kc), seconds))
    return found


def _predict(m: int, n: int, k: int, kc: int, mr: int, vectors: int, item: int, lanes: int, device: CPUModel) -> float:
    """Seconds: the products; A and B once from where they lie; partial results written and read once."""
    chunks = k // kc
    per_k = max(mr * vectors / device.fma_per_cycle, tile_load_cycles(mr, vectors, device), float(device.fma_latency))
    products = k * (m / mr) * (n / (vectors * lanes)) * per_k
    operands = (m + n) * k * item
    partials = chunks * m * n * 4
    products += chunks * (m / mr) * (n / (vectors * lanes)) * (_START_CYCLES + mr * vectors)
    moved = operands / bytes_per_cycle(operands, device) + 2 * partials / bytes_per_cycle(partials, device)
    if device.comes_from_memory(n * k * item):
        speed = bytes_per_cycle(max(n * k * item, device.l2_bytes), device)
        moved += (device.calibration.unforeseen - 1.0) * n * k * item / speed
    uneven = imbalance(chunks, device)
    return (products + moved) * uneven / device.threads / device.cycles_per_s


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    mr, nr, kc = knobs.mr, knobs.nr, knobs.kc
    found = anchored(problem.workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if stages.producers:
        return NotApplicable("split-K is for a matrix product alone")
    if obstacle := _obstacle(info):
        return NotApplicable(obstacle)
    if -1 in info.b.axes:
        return NotApplicable("B is indexed by more than its own axes: it cannot be packed")
    lanes = problem.device.lanes(dtype_bits(info.acc_dtype))
    m, n, k = (axis.extent for axis in info.axes)
    if m % mr or n % nr or nr % lanes or k % kc or kc == k:
        return NotApplicable(f"the tile {mr} x {nr} x {kc} does not divide {m} x {n} x {k}")
    if len(stages.outputs) > 1:
        return NotApplicable("several outputs")
    try:
        return _schedule(sch, stages, info, (mr, nr, kc), lanes)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _schedule(
    sch: Schedule, stages: Stages, info: Contraction, tile: tuple[int, int, int], lanes: int
) -> Kernel | NotApplicable:
    mr, nr, kc = tile
    total = stages.anchors[0]
    packed = sch.cache_read(total, info.b.read, "global")
    layout = [info.n.index, info.of_role("k")[0].index]
    dims = {axis: dim for dim, axis in enumerate(info.b.axes)}
    sch.transform_layout(total, ("read", info.b.read), packed_index(dims, layout, info.n.index, nr))
    sch.annotate(packed, PREPROC_ATTR, True)

    _, _, k = sch.get_loops(total)
    chunk, _ = sch.split(k, [None, kc])
    partial = sch.rfactor(chunk, 0)
    tile_copy = sch.cache_write(partial, 0, "local")
    m, n, chunk, ki = sch.get_loops(partial)
    mo, mi = sch.split(m, [None, mr])
    no, nv, ni = sch.split(n, [None, nr // lanes, lanes])
    sch.reorder(chunk, no, mo, ki, mi, nv, ni)
    sch.reverse_compute_at(tile_copy, mo)
    sch.vectorize(ni)
    sch.unroll(nv)
    sch.unroll(mi)
    sch.parallel(chunk)
    sch.decompose_reduction(partial, ki)
    vectorize_tile(sch, tile_copy, 3, lanes)

    if stages.outputs:
        (output,) = stages.outputs
        *rows, columns = sch.get_loops(output)
        outer, vec = sch.split(columns, [None, lanes])
        sch.set_scope(total, 0, "local")
        sch.compute_at(total, outer)
        chunk, inner = sch.get_loops(total)[len(rows) + 1 :]  # rfactor puts the new reduction axis first
        sch.vectorize(inner)
        sch.vectorize(vec)
        sch.parallel(rows[0])
    else:
        m, n, chunk = sch.get_loops(total)
        no, ni = sch.split(n, [None, lanes])
        sch.reorder(m, no, chunk, ni)
        sch.vectorize(ni)
        sch.parallel(m)
    sch.decompose_reduction(total, chunk)
    func = split_prepack(sch.mod["main"], info.b.param)
    return Kernel(func, ((info.b.param, packing_of(info, layout, nr)),), sch.trace)


FAMILY = Family("split_k", 1, Knobs, accepts, candidates, schedule)
