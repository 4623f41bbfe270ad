"""Which candidates of all families to try, in order; short kernels also on one thread, large outputs streamed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.family import (
    ALGORITHM,
    DOUBTED,
    MODE,
    PER_ROW,
    REGISTERS,
    SERIAL,
    STREAMED,
    CPUFamily,
    CPUProblem,
    knobs_of,
)
from subtune.core.candidate import Candidate
from subtune.core.workload import dtype_bits

_MUST_SAVE = 0.97
_STREAMED = 0.75  # of the time: a copy reads one line and writes one, instead of reading two

Key = tuple[object, ...]


def rank(
    found: Sequence[Candidate], families: Sequence[CPUFamily], problem: CPUProblem, topk: int
) -> tuple[Candidate, ...]:
    """At most `topk` candidates, the one predicted fastest first."""
    with_trait = {
        trait: frozenset(family.name for family in families if trait in family.traits)
        for trait in (SERIAL, STREAMED, DOUBTED, PER_ROW)
    }
    hopeful = _hopeful(found, with_trait[DOUBTED])
    everywhere = _with_serial(hopeful, with_trait[SERIAL], problem.device)
    proposed = _with_streamed(everywhere, with_trait[STREAMED], with_trait[PER_ROW], problem)
    ranked = sorted(proposed, key=lambda c: (c.predicted_s, c.family, c.knobs))
    algorithms = {family.name: knobs_of(family, MODE, ALGORITHM) for family in families}
    tiles = {family.name: knobs_of(family, MODE, REGISTERS) for family in families}
    return tuple(_diverse(_every_implementation(ranked, algorithms, topk), tiles, topk))


def _decided(candidate: Candidate, knobs: Mapping[str, tuple[str, ...]]) -> Key:
    """The candidate's family and what it decides of the family's `knobs`."""
    return (candidate.family, *(candidate.get(name) for name in knobs[candidate.family]))


def _hopeful(found: Sequence[Candidate], doubted: Collection[str]) -> list[Candidate]:
    """Doubted candidates only where they would win by more than what the model leaves out of them."""
    least = min((c.predicted_s for c in found if c.family not in doubted), default=inf)
    return [c for c in found if c.family not in doubted or c.predicted_s < _MUST_SAVE * least]


def _with_serial(found: list[Candidate], families: Collection[str], device: CPUModel) -> list[Candidate]:
    """Short kernels on one thread as well: there, starting the others costs more than they save."""
    if device.threads == 1:
        return found
    serial = [
        replace(c.having(serial=True), predicted_s=c.predicted_s * device.threads)
        for c in found
        if c.family in families and c.predicted_s < device.calibration.serial_below_s
    ]
    started = [replace(c, predicted_s=c.predicted_s + device.calibration.parallel_start_s) for c in found]
    return started + serial


def _with_streamed(
    found: list[Candidate], families: Collection[str], rowwise: Collection[str], problem: CPUProblem
) -> list[Candidate]:
    """Outputs that no cache keeps until they are read are stored past the caches as well.

    With what is read asked for ahead, memory is the limit, and so they always are. Not where rows begin in the middle
    of a line, by families that work on rows: there a vector is parts of two lines.
    """
    workload, device = problem.workload, problem.device
    largest = max((arg for arg in workload.args if arg.is_output), key=lambda arg: arg.nbytes)
    if largest.nbytes < device.l3_bytes / 2:
        return found
    is_ragged = bool(largest.shape) and int(largest.shape[-1]) * dtype_bits(largest.dtype) // 8 % device.line_bytes
    whole = [family for family in families if not is_ragged or family not in rowwise]
    streamed = [
        replace(c.having(stream=True), predicted_s=c.predicted_s * _STREAMED) for c in found if c.family in whole
    ]
    return [c for c in found if not c.get("ahead") or c.family not in whole] + streamed


def _every_implementation(
    ranked: list[Candidate], algorithms: Mapping[str, tuple[str, ...]], topk: int
) -> list[Candidate]:
    """`ranked` with the best few of every implementation moved to the front, in their order.

    The model compares two tiles of one implementation well, and two implementations less well: each gets a share.
    """
    share = max(1, topk // 4)
    seen: dict[Key, int] = {}
    first: list[Candidate] = []
    rest: list[Candidate] = []
    for candidate in ranked:
        kind = _decided(candidate, algorithms)
        seen[kind] = seen.get(kind, 0) + 1
        (first if seen[kind] <= share else rest).append(candidate)
    return first + rest if len(seen) > 1 else ranked


def _diverse(
    ranked: list[Candidate], tiles: Mapping[str, tuple[str, ...]], topk: int, per_tile: int = 3
) -> list[Candidate]:
    """The first `topk`, but no more than `per_tile` that differ only in their outer loops.

    Neighbours of one tile share the model's error; a second tile is worth more than a fourth loop order.
    """
    taken: list[Candidate] = []
    rest: list[Candidate] = []
    count: dict[Key, int] = {}
    for candidate in ranked:
        tile = _decided(candidate, tiles)
        count[tile] = count.get(tile, 0) + 1
        (taken if count[tile] <= per_tile else rest).append(candidate)
        if len(taken) == topk:
            return taken
    return (taken + rest)[:topk]
