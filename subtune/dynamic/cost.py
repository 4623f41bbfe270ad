"""How long a shape-generic kernel takes: a model of few terms, fitted to a few measured instances of each kernel.

After DietCode (MLSys'22), whose throughput is that of a micro-kernel times f_adapt = occupancy x padding. Here the time
is

    T = max(L0 + c * depth + waves * (a + b * depth), bytes / bandwidth)

with L0 for the launch, `a` for what a tile costs whatever its depth, `b` for a step of its reduction, and `c` for a
step of what many tiles do at once, where more of them take no longer. So it knows what DietCode's leaves out: launches,
short reductions, and memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """One tile of a shape-generic kernel, and who computes the tiles. Raises ValueError: a number is not positive.

    `granules` has one number for each symbolic extent: the rows of a tile along it, to which it is padded up; for
    `reduction_axis`, if there is one, the length of a step of the reduction. `step`: of a reduction along the first
    extent, which is that of the tiles' rows as well: attention's keys. `static_tiles` is how many tiles there are along
    the extents that are not symbolic. `workers` are a CPU's threads, or a GPU's SMs times the blocks an SM holds.
    `is_shared_finely`: work is shared in pieces smaller than tiles, and a last wave that is not full costs its part;
    otherwise it costs as much as a full one. The first wave does in any case. A worker takes so many tiles `together`,
    and the one that comes last what is left.
    """

    granules: tuple[int, ...]
    workers: int
    static_tiles: int = 1
    reduction_axis: int | None = None
    is_shared_finely: bool = False
    step: int | None = None
    together: int = 1

    def __post_init__(self) -> None:
        if min((self.workers, self.static_tiles, self.step or 1, self.together, *self.granules)) < 1:
            raise ValueError(f"a micro-kernel's tiles, granules and workers are positive: {self}")
        if self.reduction_axis is not None and not 0 <= self.reduction_axis < len(self.granules):
            raise ValueError(f"a micro-kernel's reduction axis is one of its {len(self.granules)} extents: {self}")


@dataclass(frozen=True, eq=False, slots=True)
class Features:
    """What the model knows of `n` instances of one kernel: arrays of n numbers; `extents` has n rows."""

    extents: np.ndarray
    tiles: np.ndarray
    waves: np.ndarray
    depth: np.ndarray
    """Steps of a symbolic reduction; 1 where there is none."""
    occupancy: np.ndarray
    """The workers' share of tiles during the waves, in (0, 1]."""
    padding: np.ndarray
    """The share of what is computed that is of use, in (0, 1]."""
    floor_s: np.ndarray
    """Seconds that memory takes: no instance is faster."""
    predicted_s: np.ndarray | None
    """Seconds by another model, of which only the proportions count; used where one instance is measured."""

    @property
    def f_adapt(self) -> np.ndarray:
        """DietCode's: which part of a micro-kernel's own throughput is left of it at each instance."""
        return self.occupancy * self.padding


def features(
    kernel: MicroKernel,
    extents: np.ndarray,
    *,
    bytes_moved: np.ndarray | None = None,
    bandwidth_bytes_per_s: float = np.inf,
    predicted_s: np.ndarray | None = None,
) -> Features:
    """Of a kernel at instances: `extents[w, i]` is the symbolic extent i of instance w, a positive whole number.

    Args:
        bytes_moved: what instance w reads and writes at least.
        predicted_s: what another model, such as a family's own, says of the kernel at instance w.
    Raises:
        ValueError: `extents` is no such matrix.
    """
    extents = np.asarray(extents)
    if extents.ndim != 2 or extents.shape[1] != len(kernel.granules) or (extents < 1).any():
        raise ValueError(f"extents are rows of {len(kernel.granules)} positive numbers, not {extents.shape}")
    granules = np.asarray(kernel.granules, dtype=np.int64)
    pieces = -(-extents // granules)
    depth = np.ones(len(extents))
    spatial = pieces
    if kernel.reduction_axis is not None:
        depth = pieces[:, kernel.reduction_axis].astype(float)
        spatial = np.delete(pieces, kernel.reduction_axis, axis=1)
    elif kernel.step:
        depth = np.ceil(extents[:, 0] / kernel.step)
    tiles = kernel.static_tiles * spatial.prod(axis=1, dtype=np.int64)
    shares = tiles / kernel.workers
    if kernel.together > 1:
        waves = _waves_of_several(tiles, kernel.together, kernel.workers)
    else:
        waves = np.maximum(shares, 1.0) if kernel.is_shared_finely else np.ceil(shares)
    moved = np.zeros(len(extents)) if bytes_moved is None else np.asarray(bytes_moved, dtype=float)
    return Features(
        extents=extents,
        tiles=tiles,
        waves=waves,
        depth=depth,
        occupancy=shares / (waves * kernel.together),
        padding=(extents / (pieces * granules)).prod(axis=1),
        floor_s=moved / bandwidth_bytes_per_s,
        predicted_s=None if predicted_s is None else np.asarray(predicted_s, dtype=float),
    )


def _waves_of_several(tiles: np.ndarray, together: int, workers: int) -> np.ndarray:
    """Of so many tiles together; what is left goes beside others, or is a wave of its own, as long as it is large."""
    rounds, others = np.divmod(tiles // together, workers)
    found: np.ndarray = rounds + np.where(others > 0, 1.0, tiles % together / together)
    return found


def to_measure(instances: Features, count: int) -> list[int]:
    """Which instances tell most of a kernel: at most `count` of their numbers, the most telling first.

    First the one of most work. Then, again and again, the one whose waves or depth differ by the largest factor from
    those of all before; among equals, that of the greatest f_adapt, where padding hides least of the micro-kernel. They
    are fewer than `count` where no instance is left whose waves and depth are others.
    """
    terms = np.log(np.stack([instances.waves, instances.depth], axis=1))
    work = terms.sum(axis=1)
    chosen = [_first_best(work, instances.f_adapt)]
    distance = np.abs(terms - terms[chosen[0]]).max(axis=1)
    while len(chosen) < count and distance.max() > 0:
        chosen.append(_first_best(distance, instances.f_adapt))
        distance = np.minimum(distance, np.abs(terms - terms[chosen[-1]]).max(axis=1))
    return chosen


def _first_best(values: np.ndarray, among_equals: np.ndarray) -> int:
    """Where `values` is greatest, to rounding, and of these `among_equals`."""
    return int(np.where(values >= values.max() - 1e-12, among_equals, -np.inf).argmax())


@dataclass(frozen=True, eq=False, slots=True)
class Model:
    """A kernel's time at any instance. Where it was measured, what was measured."""

    launch_s: float
    """L0."""
    tile_s: float
    """a: of each wave."""
    step_s: float
    """b: of each wave and step of the reduction."""
    pass_s: float
    """c: of each step of the reduction."""
    prior: float
    """Times the other model's predictions, instead of the four; 0 where these were fitted."""
    measured_extents: np.ndarray
    log_ratios: np.ndarray
    """ln(measured / modelled) at these extents."""

    def predict(self, instances: Features) -> np.ndarray:
        """Seconds of each instance. Raises ValueError: a prior was scaled, and these instances have none."""
        return self._modelled(instances) * np.exp(_between(self.measured_extents, self.log_ratios, instances.extents))

    def _modelled(self, instances: Features) -> np.ndarray:
        if self.prior:
            if instances.predicted_s is None:
                raise ValueError("one instance was measured and a prior scaled: `predicted_s` is needed of all others")
            return self.prior * instances.predicted_s
        in_waves = instances.waves * (self.tile_s + self.step_s * instances.depth)
        return np.maximum(self.launch_s + self.pass_s * instances.depth + in_waves, instances.floor_s)


def fit(instances: Features, measured_s: np.ndarray) -> Model:
    """The model of a kernel of which these instances, one or more, took `measured_s` seconds.

    To one instance the prior's times are scaled, or without a prior waves * depth. To more, L0, a, b, c >= 0 are
    fitted by least squares of relative errors; the ratios that are left are interpolated between instances, linearly
    over the logarithm of the extent, or, where several extents vary, by the inverse square of the distance. An instance
    measured twice has the geometric mean.

    Raises:
        ValueError: there is no instance, or a time is not a positive number.
    """
    measured = np.asarray(measured_s, dtype=float)
    if measured.shape != (len(instances.extents),) or not len(measured):
        raise ValueError(f"{len(instances.extents)} instances need as many times, and at least one: {measured.shape}")
    if not (np.isfinite(measured) & (measured > 0)).all():
        raise ValueError("measured times are positive numbers of seconds")
    points, which = np.unique(instances.extents, axis=0, return_inverse=True)
    launch = tile = step = each = prior = 0.0
    if len(points) == 1 and instances.predicted_s is not None:
        prior = float(np.exp(np.mean(np.log(measured / instances.predicted_s))))
    else:
        # What memory limits says nothing of the other terms, but that they are less.
        rows = measured > instances.floor_s
        rows = rows if rows.any() else np.ones_like(rows)
        waves, depth = instances.waves, instances.depth
        terms = np.stack([waves * depth, waves, np.ones_like(measured), depth], axis=1)
        step, tile, launch, each = _non_negative(terms[rows] / measured[rows, None], np.ones(int(rows.sum())))
    bare = Model(launch, tile, step, each, prior, points, np.zeros(len(points)))
    ratios = np.log(measured / bare._modelled(instances))
    sums = np.bincount(which.ravel(), ratios, len(points))
    return Model(launch, tile, step, each, prior, points, sums / np.bincount(which.ravel(), minlength=len(points)))


def _non_negative(terms: np.ndarray, wanted: np.ndarray) -> tuple[float, ...]:
    """The x >= 0 of least |terms x - wanted|: of the optima over all subsets of columns, the best that is not negative.

    Exact for the few columns there are. Of equally good ones, that of the fewest and the first columns: those that say
    how the time grows.
    """
    best, least = np.zeros(terms.shape[1]), np.inf
    for columns in _subsets(terms.shape[1]):
        scale = np.linalg.norm(terms[:, columns], axis=0)
        found = np.linalg.lstsq(terms[:, columns] / scale, wanted, rcond=None)[0] / scale
        error = float(((terms[:, columns] @ found - wanted) ** 2).sum())
        if (found >= 0).all() and error < least - 1e-9 * len(wanted):
            best, least = np.zeros(terms.shape[1]), error
            best[columns] = found
    return tuple(float(value) for value in best)


def _subsets(count: int) -> Iterator[list[int]]:
    for size in range(1, count + 1):
        yield from map(list, combinations(range(count), size))


def _between(points: np.ndarray, values: np.ndarray, extents: np.ndarray) -> np.ndarray:
    """Values at rows of extents of a function known at `points`, exact there; one of a single extent ends constant."""
    if len(points) == 1:
        return np.full(len(extents), values[0])
    known, wanted = np.log(points), np.log(extents)
    varying = np.flatnonzero(np.ptp(known, axis=0) > 0)
    if len(varying) == 1:
        return np.interp(wanted[:, varying[0]], known[:, varying[0]], values)  # np.unique has ordered them
    squares = ((wanted[:, None] - known) ** 2).sum(axis=2)
    nearest = squares.argmin(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = 1 / squares
        mean = (weights * values).sum(axis=1) / weights.sum(axis=1)
    return np.where(squares.min(axis=1) == 0, values[nearest], mean)
