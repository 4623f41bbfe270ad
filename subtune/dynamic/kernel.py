"""A candidate's kernel for all instances of a workload: a micro-kernel, and as many of its tiles as an instance has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from subtune.backends.base import Device, Problem
from subtune.core.candidate import Candidate
from subtune.core.dims import Dim, Quotient, quotient
from subtune.core.kernel import ConstantTransform, Kernel, NotApplicable
from subtune.dynamic.fit import divisors_with
from subtune.dynamic.own_memory import writes_before_start, writes_past_end
from subtune.dynamic.rounded import with_tiles
from subtune.dynamic.samples import sample_tiles
from subtune.dynamic.template import Graph, Template, difference, graph_of, template_of
from subtune.dynamic.workload import DynamicWorkload, has_free_rows
from subtune.passes.pad_attention import KEYS
from subtune.patterns.bottleneck import Bottleneck
from subtune.patterns.chain import Chain
from subtune.patterns.chain_copies import ChainWithCopies
from subtune.patterns.contraction import Contraction
from subtune.patterns.planes import Planes
from subtune.patterns.pooled import Pooled
from subtune.patterns.window import Window

PLAIN = Candidate("plain")
SINGLE = Candidate("plain", (("threads", 1),))
"""For a workload that nothing else serves at all extents: see `Backend.plain`."""
_BESIDE = ("ahead", "passes", "prefetch")
"""Knobs of what is done beside the computation."""
_USUAL = 128
"""The greatest extent, where nobody says one."""
_MANY = 200
"""Extents of which a third is more than reductions are long that GPUs schedule as short ones."""
_TELLING = (0, 3)
"""Points at which most kernels differ that do so at all: their extents leave other remainders by 4, by 8 and by 16."""

_TILES_OTHERS = (Window, Planes, Pooled, Bottleneck, Chain, ChainWithCopies)
"""Patterns whose tiles are of one image's pixels, or of one head's queries."""

MIXING = frozenset(("strassen",))
"""Families whose kernels add rows up and take them away again. A row past the last one that nobody wrote would get into
the results, which look right where it happens to be small: these have to know the extents, as those of images do."""


@dataclass(frozen=True, slots=True)
class DynamicKernel:
    """`template` is of flat PrimFuncs, in the numbers of tiles of each extent: `tiles = ceil(extent / granule)`.

    With a granule above 1 the last tile reads and writes rows past the last one.
    """

    candidate: Candidate
    granules: tuple[int, ...]
    template: Template
    """Of what `Backend.comparable` makes."""
    packings: tuple[tuple[int, ConstantTransform], ...]
    knows_extents: bool = False
    is_lowered: bool = True
    """As `Backend.compares_lowered`."""

    def names(self, workload: DynamicWorkload) -> tuple[str, ...]:
        """Of its leading parameters."""
        return (*workload.names, *map(_known, workload.names)) if self.knows_extents else workload.names

    def numbers(self, extents: Sequence[int]) -> tuple[int, ...]:
        """The values of its leading parameters."""
        return numbers_of(extents, self.granules, self.knows_extents)


def numbers_of(extents: Sequence[int], granules: Sequence[int], knows_extents: bool = False) -> tuple[int, ...]:
    """What a kernel takes before its buffers."""
    return (*tiles_of(extents, granules), *(extents if knows_extents else ()))


def _known(name: str) -> str:
    """The symbol of an extent, where that of `name` is its number of tiles."""
    return f"{name}_rows"


def tiles_of(extents: Sequence[int], granules: Sequence[int]) -> tuple[int, ...]:
    """Along each extent, the last one that is not full included."""
    return tuple(-(-extent // granule) for extent, granule in zip(extents, granules, strict=True))


def dynamic_kernel(workload: DynamicWorkload, candidate: Candidate, device: Device) -> DynamicKernel | NotApplicable:
    """The kernel of all instances that `candidate` schedules alike, or why there is none.

    It is exact where the schedule is the same for any extent; else a multiple of the candidate's tile is computed,
    where that is allowed. Where it is not even alike then, it is tried without prefetches: they may be shared out
    among so many tiles as there are.
    """
    found = _dynamic_kernel(workload, candidate, device)
    plainer = _plainer(candidate)
    if not isinstance(found, DynamicKernel) and plainer != candidate:
        again = _dynamic_kernel(workload, plainer, device)
        found = replace(again, candidate=candidate) if isinstance(again, DynamicKernel) else found
    return found


def single_kernel(workload: DynamicWorkload, candidate: Candidate, device: Device) -> DynamicKernel | NotApplicable:
    """The kernel of the instance that has one element of every extent, as a static one.

    A batch of one image has no index of images, and one row none of rows: what counts them takes a tenth of a
    convolution of one image on an H200. And some families serve one row, and no other number.
    """
    ones = (1,) * len(workload.extents)
    return _compared(workload, [candidate], device, ones, [ones], [{}])


def _within_memory(workload: DynamicWorkload, kernel: DynamicKernel | NotApplicable) -> DynamicKernel | NotApplicable:
    """The kernel, if it stays within memory of its own at the least instance, the greatest, and a few others, of which
    some are even."""
    least, greatest = workload.least, workload.greatest
    if isinstance(kernel, NotApplicable) or not least or not kernel.is_lowered:
        return kernel
    some = [tuple(min(times * a, b) for a, b in zip(least, greatest or least, strict=True)) for times in (1, 2, 4)]
    for extents in dict.fromkeys((*some, *((greatest,) if greatest else ()))):
        func = kernel.template.at(dict(zip(kernel.names(workload), kernel.numbers(extents), strict=True)))
        if extents == least and writes_before_start(func):
            return NotApplicable(f"its tiles of vectors begin in front of its own memory at {list(extents)}")
        if writes_past_end(func, workload.num_outputs if set(kernel.granules) <= {1} else 0):
            return NotApplicable(f"its loops go past the end of its memory at {list(extents)}")
    return kernel


def _plainer(candidate: Candidate) -> Candidate:
    kept = tuple(knob for knob in candidate.knobs if knob[0] not in _BESIDE)
    return Candidate(candidate.family, kept, candidate.predicted_s)


def _dynamic_kernel(workload: DynamicWorkload, candidate: Candidate, device: Device) -> DynamicKernel | NotApplicable:
    if _mixes_rows(workload, candidate, device):
        return _within_memory(workload, _knowing_extents(workload, candidate, device))
    reason = NotApplicable("no instance can be scheduled")
    ways = [(False, 0)]
    if _quotients(workload) or candidate.family == PLAIN.family:
        ways.append((True, 0))
    elif min(workload.greatest, default=_USUAL) <= KEYS:
        # even numbers, too, tell what is rounded from what is added; and primes, which few small numbers are, leave a
        # remainder by any height of a tile
        ways = [(True, 0), (False, 0), (False, KEYS + 1)]
    for granules in _granules(workload, candidate, device):
        for is_even, least in ways:
            found = _within_memory(workload, _with_granules(workload, candidate, device, granules, is_even, least))
            if isinstance(found, DynamicKernel):
                return found
            reason = found
    return reason


def _granules(workload: DynamicWorkload, candidate: Candidate, device: Device) -> Iterator[tuple[int, ...]]:
    knobs = [value for _, value in candidate.knobs if isinstance(value, int) and not isinstance(value, bool)]
    if workload.extents and knobs and _has_free_rows(workload) and tiles_rows(workload, device):
        tile = device.backend.shape_of_tile(candidate).rows
        for granule in sorted({tile, tile * int(candidate.get("mt") or 1)} - {1}):
            yield (granule,)
    yield (1,) * len(workload.extents)


def most_rows(workload: DynamicWorkload, candidate: Candidate, device: Device) -> int:
    """Of its tiles: at most so many, less one, are computed past the last row."""
    if _mixes_rows(workload, candidate, device):
        return _rows_of_blocks(candidate)
    return max(max(granules, default=1) for granules in _granules(workload, candidate, device))


def _mixes_rows(workload: DynamicWorkload, candidate: Candidate, device: Device) -> bool:
    """Whether it adds up rows of which it has to be told how many there are."""
    count = len(workload.extents) if candidate.family in MIXING else 0
    return count > 1 or (count == 1 and tiles_rows(workload, device))


def _rows_of_blocks(candidate: Candidate) -> int:
    return int(2 ** int(candidate["levels"]) * int(candidate["mb"]))


def _knowing_extents(workload: DynamicWorkload, candidate: Candidate, device: Device) -> DynamicKernel | NotApplicable:
    """A kernel of whole tiles that takes what it adds up from the rows that there are."""
    if not _has_free_rows(workload):
        return NotApplicable(f"{candidate.family} adds up rows, and these are not alone")
    blocks, granule = 2 ** int(candidate["levels"]), _rows_of_blocks(candidate)
    greatest = workload.greatest or (_USUAL,)
    counts = [tiles for (tiles,) in sample_tiles(tiles_of(greatest, (granule,)))]
    # They leave 2 when divided by 4: where a bound is a multiple of what it bounds, TVM writes it otherwise. One row of
    # every block is lacking at least.
    least = blocks + (2 - blocks) % 4
    lacking = [least + 4 * ((5 * i + i // 2) % ((granule - least + 3) // 4)) for i in range(len(counts))]
    sizes = [(tiles * granule,) for tiles in counts]
    rows = [size - less for (size,), less in zip(sizes, lacking, strict=True)]
    name = workload.names[0]
    named = [{name: tiles, _known(name): count} for tiles, count in zip(counts, rows, strict=True)]
    candidates = [candidate.having(rows=count) for count in rows]
    found = _compared(workload, candidates, device, (granule,), sizes, named, knows_extents=True)
    return replace(found, candidate=candidate) if isinstance(found, DynamicKernel) else found


def _with_granules(
    workload: DynamicWorkload,
    candidate: Candidate,
    device: Device,
    granules: tuple[int, ...],
    is_even: bool,
    least: int,
) -> DynamicKernel | NotApplicable:
    """`least`: as if the greatest instance had so much of every extent."""
    greatest = tuple(max(extent, least) for extent in workload.greatest or (_USUAL,) * len(granules))
    if any(len(one.dividend.symbols) > 1 for one in _quotients(workload)):
        greatest = tuple(max(extent, KEYS + 1) for extent in greatest)  # below, all sums are of as many tiles
    if not device.backend.compares_lowered:  # what is scheduled for many serves few: comparisons stay
        greatest = tuple(max(extent, _MANY) for extent in greatest)
    steps = tuple(granule * unit for granule, unit in zip(granules, _units(workload, granules), strict=True))
    points = sample_tiles(tiles_of(greatest, steps), is_even, partial(_pads_sums, workload, steps))
    sizes = [tuple(count * step for count, step in zip(point, steps, strict=True)) for point in points]
    tiles = [dict(zip(workload.names, tiles_of(size, granules), strict=True)) for size in sizes]
    named = [_with_quotients(workload, of_size, granules) for of_size in tiles]
    found = _compared(workload, [candidate] * len(sizes), device, granules, sizes, named)
    return _confirmed(workload, found, device)


def _confirmed(
    workload: DynamicWorkload, kernel: DynamicKernel | NotApplicable, device: Device
) -> DynamicKernel | NotApplicable:
    """The kernel, if its numbers are right at instances below those that it was made of: a number of tiles may be like
    another one there, `ceil(49*n/32)` like `3*ceil(n/2)` at all odd numbers from 17 to 47. Nothing is said of instances
    whose kernels have another form."""
    if isinstance(kernel, NotApplicable) or _quotients(workload):
        return kernel
    for extents in _few(workload) if any(map(_is_doubtful, kernel.template.holes.values())) else ():
        counts = tiles_of(extents, kernel.granules)
        size = tuple(count * granule for count, granule in zip(counts, kernel.granules, strict=True))
        own = _scheduled(_problem(workload, size, device), kernel.candidate, device)
        if not isinstance(own, Kernel):
            continue
        values = dict(zip(kernel.names(workload), kernel.numbers(size), strict=True))
        both = [graph_of(kernel.template.at(values)), graph_of(device.backend.comparable(own.func, device))]
        if difference(both) is None and difference(both, in_numbers=True):
            return NotApplicable(f"its numbers are others at {list(extents)}")
    return kernel


def _is_doubtful(dim: Dim) -> bool:
    """Whether a number is more than a multiple of extents, or one less than that."""
    constant = dict(dim.terms).get((), 0)
    return abs(constant) > 1 or dim.has_quotient


def _few(workload: DynamicWorkload) -> list[tuple[int, ...]]:
    """Instances of few elements: of one extent the greatest and some below it."""
    unit = _units(workload, (1,))[0] if len(workload.extents) == 1 else 0
    most = workload.greatest[0] // unit if unit and workload.greatest else 0
    counts = dict.fromkeys((most, most - 1, most - 2, most // 2)) if most <= KEYS else ()
    return [(unit * count,) for count in counts if count > 0]


def _compared(
    workload: DynamicWorkload,
    candidates: Sequence[Candidate],
    device: Device,
    granules: tuple[int, ...],
    sizes: Sequence[tuple[int, ...]],
    named: Sequence[Mapping[str, int]],
    knows_extents: bool = False,
) -> DynamicKernel | NotApplicable:
    """What the kernels at extents of these `sizes` have in common, in symbols that have the values `named` there."""
    graphs: dict[int, Graph] = {}
    packings: dict[int, tuple[tuple[int, ConstantTransform], ...]] = {}
    for at in sorted(range(len(sizes)), key=lambda one: (one not in _TELLING, one)):
        kernel = _scheduled(_problem(workload, sizes[at], device), candidates[at], device)
        if not isinstance(kernel, Kernel):
            return kernel
        packings[at] = kernel.packings
        if len(set(packings.values())) > 1:
            return NotApplicable("its weights are packed otherwise at other extents")
        graphs[at] = graph_of(device.backend.comparable(kernel.func, device))
        if len(graphs) == len(_TELLING) and (differs := difference(list(graphs.values()))):
            return differs
    template = template_of([graphs[at] for at in range(len(sizes))], named, divisors_with(candidates[0].knobs))
    if isinstance(template, NotApplicable):
        return template
    is_lowered = device.backend.compares_lowered
    return DynamicKernel(candidates[0], granules, with_tiles(template, named), packings[0], knows_extents, is_lowered)


@lru_cache(maxsize=64)
def _problem(workload: DynamicWorkload, extents: tuple[int, ...], device: Device) -> Problem[Any]:
    """An instance; what is found out about it serves all candidates."""
    return Problem(workload.at(extents), device.model, device.numerics)


@lru_cache(maxsize=4)
def _has_free_rows(workload: DynamicWorkload) -> bool:
    return has_free_rows(workload)


def _units(workload: DynamicWorkload, granules: Sequence[int]) -> tuple[int, ...]:
    """What every extent is a multiple of: rows that are pixels of whole images end with a tile, if an image does."""
    if set(granules) != {1} or _quotients(workload):
        return (1,) * len(granules)
    return tuple(math.gcd(*(factor for _, factor in dim.terms)) for dim in workload.extents)


def _pads_sums(workload: DynamicWorkload, steps: Sequence[int], point: Sequence[int]) -> bool:
    """Whether every sum of extents that it pads is padded: that of odd ones may be a whole number of tiles."""
    values = {name: count * step for name, count, step in zip(workload.names, point, steps, strict=True)}
    return all(one.dividend.at(values) % one.divisor for one in _quotients(workload) if len(one.dividend.symbols) > 1)


def _with_quotients(workload: DynamicWorkload, values: Mapping[str, int], granules: Sequence[int]) -> dict[str, int]:
    """The extents at a point, and the numbers of tiles to which the workload itself pads them."""
    if set(granules) != {1}:
        return dict(values)
    return {**values, **{one.name: one.of(one.dividend.at(values)) for one in _quotients(workload)}}


@lru_cache(maxsize=4)
def tiles_rows(workload: DynamicWorkload, device: Device) -> bool:
    """Whether tiles have several of the rows that vary, and are computed whole: not those of a convolution, which are
    pixels of one image, nor of a product of many, nor where kernels compare every row with the number that there is."""
    if len(workload.extents) != 1 or not device.backend.compares_lowered:
        return False
    one, other = (_problem(workload, (extent,), device).pattern for extent in (_USUAL, _USUAL + 3))
    if isinstance(one, Contraction) and isinstance(other, Contraction):
        rows = one.of_role("m")
        return len(rows) == 1 and rows != other.of_role("m")
    return not isinstance(one, _TILES_OTHERS)


@lru_cache(maxsize=4)
def _quotients(workload: DynamicWorkload) -> tuple[Quotient, ...]:
    """Numbers of tiles to which the workload pads its extents."""
    names = {name for dim in workload.template.holes.values() for monomial, _ in dim.terms for name in monomial}
    return tuple(found for name in sorted(names) if (found := quotient(name)))


def _scheduled(problem: Problem[Any], candidate: Candidate, device: Device) -> Kernel | NotApplicable:
    if candidate.family == PLAIN.family:
        return device.backend.plain(problem.workload, is_single=candidate == SINGLE)
    return device.backend.kernel(problem, candidate)
