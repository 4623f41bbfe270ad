"""Device model and workload in, candidates out, best first: arithmetic only."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.bottleneck.candidates import bottleneck_candidates
from subtune.backends.cpu.families.chain.candidates import chain_candidates
from subtune.backends.cpu.families.contraction.candidates import contraction_candidates
from subtune.backends.cpu.families.contraction_bf16.candidates import contraction_bf16_candidates
from subtune.backends.cpu.families.grouped.candidates import grouped_candidates
from subtune.backends.cpu.families.memory_bound import (
    columns_candidates,
    dot_candidates,
    elementwise_candidates,
    rowwise_candidates,
    window_candidates,
)
from subtune.backends.cpu.families.split_k.candidates import split_k_candidates
from subtune.backends.cpu.families.strassen.candidates import strassen_candidates
from subtune.backends.cpu.families.winograd.candidates import winograd_candidates
from subtune.core.candidate import Candidate
from subtune.core.workload import Workload
from subtune.patterns.bottleneck import Bottleneck
from subtune.patterns.chain import Chain
from subtune.patterns.contraction import Contraction
from subtune.patterns.elementwise import Elementwise
from subtune.patterns.recognise import recognise
from subtune.patterns.rows import Columns, Rowwise
from subtune.patterns.window import Window

__all__ = ["candidates"]

_PARALLEL_START_S = 1e-6  # from the call to the first iteration on a warm pool; median over 110 kernels on Zen 5
_SERIAL_BELOW_S = 6e-6  # of all threads; half of it is what a second one saves
_MUST_SAVE = 0.97
_STREAMED = 0.75  # of the time: a copy reads one line and writes one, instead of reading two
_STREAMED_TEMPLATES = ("elementwise", "transpose", "rowwise", "columns", "pieces", "moments", "window")
_SERIAL_TEMPLATES = (
    "contraction", "contraction_bf16", "window", "rowwise", "columns", "grouped", "elementwise", "chain", "transpose",
)  # fmt: skip


def candidates(workload: Workload, device: CPUModel, topk: int = 20) -> tuple[Candidate, ...]:
    """At most `topk` candidates for `workload` on `device`, the one predicted fastest first.

    The default schedule is not among them. Empty where only the default schedule applies. No build, no clock:
    the same inputs give the same candidates in the same order.

    >>> from subtune import models
    >>> from subtune.pipeline import prepare
    >>> from subtune.backends.cpu.device import CPUModel
    >>> first, *_ = prepare(models.reduced("mlp")).subgraphs
    >>> best, second = candidates(first.workload, CPU("auto"), topk=2)
    >>> best.predicted_s <= second.predicted_s
    True
    """
    anchor = recognise(workload)
    found: list[Candidate]
    if isinstance(anchor, Contraction):
        found = contraction_bf16_candidates(anchor, workload, device)
        if not found:
            found = contraction_candidates(anchor, workload, device)
            found += split_k_candidates(anchor, device)
            found += grouped_candidates(anchor, device)
            found += dot_candidates(anchor, workload, device)
        if not device.exact_math and sum(arg.is_output for arg in workload.args) == 1:
            found += winograd_candidates(anchor, device)
            found += _hopeful(strassen_candidates(anchor, workload, device), found)
    elif isinstance(anchor, Window):
        found = window_candidates(anchor, workload, device)
    elif isinstance(anchor, Rowwise):
        found = rowwise_candidates(anchor, workload, device)
    elif isinstance(anchor, Columns):
        found = columns_candidates(anchor, workload, device)
    elif isinstance(anchor, Chain):
        found = chain_candidates(anchor, device)
    elif isinstance(anchor, Bottleneck):
        found = bottleneck_candidates(anchor, device)
    elif isinstance(anchor, Elementwise):
        found = elementwise_candidates(anchor, workload, device)
    else:
        found = []
    found = _with_streamed(_with_serial(found, device), workload, device)
    ranked = sorted(found, key=lambda c: (c.predicted_s, c.family, c.knobs))
    return tuple(_diverse(_every_implementation(ranked, topk), topk))


def _hopeful(fewer_products: list[Candidate], others: list[Candidate]) -> list[Candidate]:
    """Strassen's candidates that would win by more than what the model leaves out of their sums."""
    least = min((c.predicted_s for c in others), default=inf)
    return [c for c in fewer_products if c.predicted_s < _MUST_SAVE * least]


def _with_serial(found: list[Candidate], device: CPUModel) -> list[Candidate]:
    """Short kernels on one thread as well: there, starting the others costs more than they save."""
    if device.threads == 1:
        return found
    serial = [
        Candidate.make(c.family, c.predicted_s * device.threads, serial=True, **dict(c.knobs))
        for c in found
        if c.family in _SERIAL_TEMPLATES and c.predicted_s < _SERIAL_BELOW_S
    ]
    started = [replace(c, predicted_s=c.predicted_s + _PARALLEL_START_S) for c in found]
    return started + serial


def _with_streamed(found: list[Candidate], workload: Workload, device: CPUModel) -> list[Candidate]:
    """Outputs that no cache keeps until they are read are stored past the caches as well.

    With what is read asked for ahead, memory is the limit, and so they always are.
    """
    largest = max((arg.nbytes for arg in workload.args if arg.is_output), default=0)
    if largest < device.l3_bytes / 2:
        return found
    streamed = [
        Candidate.make(c.family, c.predicted_s * _STREAMED, stream=True, **dict(c.knobs))
        for c in found
        if c.family in _STREAMED_TEMPLATES
    ]
    return [c for c in found if not c.get("ahead")] + streamed


def _every_implementation(ranked: list[Candidate], topk: int) -> list[Candidate]:
    """`ranked` with the best few of every implementation moved to the front, in their order.

    The model compares two tiles of one implementation well, and two implementations less well: each gets a share.
    """
    share = max(1, topk // 4)
    seen: dict[tuple[object, ...], int] = {}
    first: list[Candidate] = []
    rest: list[Candidate] = []
    for candidate in ranked:
        kind = (
            candidate.family, candidate.is_serial, candidate.get("levels"), candidate.get("pack") is True,
            candidate.get("stream"), candidate.get("ahead"),
        )  # fmt: skip
        seen[kind] = seen.get(kind, 0) + 1
        (first if seen[kind] <= share else rest).append(candidate)
    return first + rest if len(seen) > 1 else ranked


def _diverse(ranked: list[Candidate], topk: int, per_tile: int = 3) -> list[Candidate]:
    """The first `topk`, but no more than `per_tile` that differ only in their outer loops.

    Neighbours of one tile share the model's error; a second tile is worth more than a fourth loop order.
    """
    taken: list[Candidate] = []
    rest: list[Candidate] = []
    count: dict[tuple[object, ...], int] = {}
    for candidate in ranked:
        tile = (
            candidate.family,
            candidate.is_serial,
            candidate.get("stream"),
            candidate.get("ahead"),
            *(value for name, value in candidate.knobs if name in ("mr", "nr", "cb")),
        )
        count[tile] = count.get(tile, 0) + 1
        (taken if count[tile] <= per_tile else rest).append(candidate)
        if len(taken) == topk:
            return taken
    return (taken + rest)[:topk]
