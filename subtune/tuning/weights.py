"""What packed weights may add to a whole model: above the limit, kernels give way that lose least for a byte saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod

from tvm.ir import Call, GenericConst, IRModule, Op

from subtune import backends
from subtune.backends.base import Device
from subtune.core.candidate import Candidate
from subtune.core.graph import Subgraph
from subtune.core.kernel import ConstantTransform, Kernel
from subtune.core.measurement import Timing
from subtune.core.record import func_hash
from subtune.core.workload import dtype_bits
from subtune.database import Database
from subtune.tuning.winners import Winners, applied

LIMIT = 1.25
"""Times the model's own weights, unless the user says otherwise: what they take at most as kernels want them."""
FREE_BYTES = 128 * 2**20
"""What packing may add in any case, unless the user says otherwise. ResNet-18 has 45 MiB of weights; Winograd adds 109
to them, and without those it takes a sixth longer."""
_TRIED = 12
"""So many of a workload's candidates are scheduled to see what weights they want, the fastest first."""

_LESS = 0.9
"""Of the bytes of the candidate before it: what saves less is not worth a change."""

Slower = Callable[[Subgraph], Iterable[tuple[Candidate, float, Kernel]]]
"""A subgraph's other candidates with the seconds of one call and their kernels, the fastest first."""
_Site = tuple[str, int, GenericConst]
"""Subgraph, argument, constant."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A subgraph whose fastest kernel wants too much: both candidates, and what the other costs in all its uses."""

    subgraph: str
    fastest: str
    taken: str
    saved_bytes: int
    lost_s: float


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model's constants: its own, what ships, what the fastest kernels want, and what they may take."""

    own_bytes: int
    packed_bytes: int
    wanted_bytes: int
    limit_bytes: float | None
    """None: no limit."""
    given_up: tuple[GivenUp, ...] = ()

    def __str__(self) -> str:
        own, packed, wanted = (f"{n / 2**20:.1f}" for n in (self.own_bytes, self.packed_bytes, self.wanted_bytes))
        text = f"weights: {own} MiB in the model, {packed} as kernels take them"
        if self.limit_bytes is None or not self.given_up:
            return text
        lost_us = sum(one.lost_s for one in self.given_up) * 1e6
        return (
            f"{text}; the fastest want {wanted}, and the limit is {self.limit_bytes / 2**20:.1f}: "
            f"{len(self.given_up)} subgraphs take others, for {lost_us:.0f} us"
        )


@dataclass(frozen=True, slots=True)
class _Option:
    candidate: Candidate
    seconds: float
    kernel: Kernel
    nbytes: int


def known_to_be_slower(database: Database, device: Device) -> Slower:
    """What tuning timed of a subgraph; where nothing was, what is predicted, as of the kernels that ship."""

    def of(subgraph: Subgraph) -> Iterator[tuple[Candidate, float, Kernel]]:
        outcomes = database.outcomes(subgraph.workload, device.scope())
        timed = [(candidate, one.median_s) for candidate, one in outcomes.items() if isinstance(one, Timing)]
        guessed = () if timed else backends.candidates(subgraph.workload, device)
        known = [*timed, *((one, one.predicted_s) for one in guessed)]
        for candidate, seconds in sorted(known, key=lambda pair: pair[1])[:_TRIED]:
            kernel = applied(subgraph.workload, candidate, device)
            if isinstance(kernel, Kernel):
                yield candidate, seconds, kernel

    return of


def spare_bytes(own: int, limit: float | None, layouts: int = 1) -> float:
    """What packed weights may take beyond `own` bytes of the model's, `limit` as of `within`, where each may be kept in
    so many layouts."""
    return (limit - 1) * own if limit is not None else layouts * max((LIMIT - 1) * own, FREE_BYTES)


def within(
    mod: IRModule,
    subgraphs: Sequence[Subgraph],
    kernels: Mapping[str, Kernel],
    winners: Winners,
    slower: Slower,
    limit: float | None,
) -> tuple[dict[str, Kernel], Winners, Weights]:
    """The kernels and winners, changed where their packed weights together exceed `limit` times the model's own.

    None is the default: `LIMIT`, and `FREE_BYTES` more than the model's own in any case.
    A constant that several calls read in the same layout counts once. The subgraph gives way first that loses the
    fewest seconds for a byte; where nothing smaller is known, the limit is exceeded, and the report shows it.

    Args:
        mod: the outlined module that calls the subgraphs.
        kernels: of the winners, by subgraph name.
    """
    sites = _sites(mod, {subgraph.name for subgraph in subgraphs})
    own = _nbytes(sites, {})
    most = own + spare_bytes(own, limit)
    wanted = packed = _nbytes(sites, kernels)
    chosen, given_up = dict(kernels), dict[str, GivenUp]()
    ladders = _ladders(sites, subgraphs, kernels, winners, slower) if wanted > most else {}
    by_name = {subgraph.name: subgraph for subgraph in subgraphs}
    while packed > most and (name := _cheapest(ladders, by_name)):
        first, taken = by_name[name], ladders[name].pop(0)
        chosen[name] = ladders[name][0].kernel
        before, packed = packed, _nbytes(sites, chosen)
        earlier = given_up.get(name)
        given_up[name] = GivenUp(
            name,
            earlier.fastest if earlier else str(taken.candidate),
            str(ladders[name][0].candidate),
            before - packed + (earlier.saved_bytes if earlier else 0),
            (ladders[name][0].seconds - taken.seconds) * first.uses + (earlier.lost_s if earlier else 0.0),
        )
    found = Weights(own, packed, wanted, most if isfinite(most) else None, tuple(given_up.values()))
    taken_now = {by_name[name].workload.key: ladders[name][0] for name in given_up}
    return chosen, _changed(winners, taken_now), found


def _sites(mod: IRModule, names: set[str]) -> list[_Site]:
    """Of every constant that a call reads."""
    call_tir = Op.get("relax.call_tir")
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, Call) and call.op == call_tir and call.args[0].name_hint in names:
                name = str(call.args[0].name_hint)
                found += [(name, i, arg) for i, arg in enumerate(call.args[1].fields) if isinstance(arg, GenericConst)]
    return found


def _nbytes(sites: Sequence[_Site], kernels: Mapping[str, Kernel]) -> int:
    """Bytes of all constants, those that are read in the same layout once."""
    packings = {name: dict(kernel.packings) for name, kernel in kernels.items()}
    found: dict[tuple[GenericConst, ConstantTransform | None], int] = {}
    for name, index, constant in sites:
        packing = packings.get(name, {}).get(index)
        shape, dtype = constant.ty.shape, constant.ty.dtype
        if packing is not None:  # of words, maybe, that hold several elements
            shape, dtype = packing.shape, kernels[name].func.params[index].dtype
        found[constant, packing] = prod(int(dim) for dim in shape) * dtype_bits(str(dtype)) // 8
    return sum(found.values())


def _ladders(
    sites: Sequence[_Site],
    subgraphs: Sequence[Subgraph],
    kernels: Mapping[str, Kernel],
    winners: Winners,
    slower: Slower,
) -> dict[str, list[_Option]]:
    """Of every subgraph with packed constants: its winner, then slower candidates of fewer and fewer bytes."""
    found = {}
    for subgraph in subgraphs:
        kernel = kernels[subgraph.name]
        if not kernel.packings:
            continue
        own = [site for site in sites if site[0] == subgraph.name]
        candidate = winners.candidate(subgraph.workload.key)
        record = winners.records.get(subgraph.workload.key)
        fastest_s = record.timing.median_s if record else candidate.predicted_s
        ladder = [_Option(candidate, fastest_s, kernel, _nbytes(own, {subgraph.name: kernel}))]
        for other, seconds, slower_kernel in slower(subgraph):
            nbytes = _nbytes(own, {subgraph.name: slower_kernel})
            if nbytes <= _LESS * ladder[-1].nbytes:
                ladder.append(_Option(other, max(seconds, ladder[-1].seconds), slower_kernel, nbytes))
        found[subgraph.name] = ladder
    return found


def _cheapest(ladders: Mapping[str, list[_Option]], subgraphs: Mapping[str, Subgraph]) -> str:
    """The subgraph whose next step loses the fewest seconds for a byte; "" where there is no step left."""
    rates = {
        name: (ladder[1].seconds - ladder[0].seconds) * subgraphs[name].uses / (ladder[0].nbytes - ladder[1].nbytes)
        for name, ladder in ladders.items()
        if len(ladder) > 1
    }
    return min(rates, key=lambda name: (rates[name], name), default="")


def _changed(winners: Winners, taken: Mapping[str, _Option]) -> Winners:
    """The records of what is taken now, by workload key: its time, and the gain over the same default."""
    records, guesses = dict(winners.records), dict(winners.guesses)
    for key, option in taken.items():
        record = records.get(key)
        if record is None:
            guesses[key] = option.candidate
            continue
        timing = replace(record.timing, median_s=option.seconds, min_s=option.seconds)
        gain = max(1.0, record.default_s / option.seconds) if option.seconds else 1.0
        hashed = func_hash(option.kernel.func)
        records[key] = replace(record, candidate=option.candidate, timing=timing, gain=gain, func_hash=hashed)
    return Winners(records, guesses)
