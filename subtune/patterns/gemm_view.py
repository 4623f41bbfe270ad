"""A contraction seen as GEMMs: which of its axes run together as rows, batches and steps of k, operand by operand.

    C[batch, rows, n] += A[batch, rows, k] * B[batch, n, k]

Adjacent axes that every operand holds contiguously become one group: the pixels of a 1x1 convolution are one group of
rows. What is left of an operand are the dims that a tensor map walks: extent, stride, and the index into each,
`scale * group + dilation * window`. A padding is not seen here: it only shifts an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from subtune.core.kernel import NotApplicable
from subtune.patterns.axes import Operand
from subtune.patterns.contraction import Contraction

MAX_DIMS = 5
"""Of a tensor map (CUDA driver API, cuTensorMapEncodeTiled)."""
_MAX_ROWS = 4  # of a window in three dims: images, and where in them


@dataclass(frozen=True, slots=True)
class Group:
    """Axes of one role that are walked as one, outermost first, with the extent of each."""

    role: str  # "batch" | "m" | "n" | "k"
    axes: tuple[int, ...]
    extents: tuple[int, ...]

    @property
    def extent(self) -> int:
        return prod(self.extents)


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of an operand: read at `scale * group + dilation * window`, where -1 is no group."""

    extent: int
    stride: int  # elements
    group: int
    scale: int = 1
    window: int = -1
    dilation: int = 0


@dataclass(frozen=True, slots=True)
class GemmView:
    """`rows`, `batch` and `steps` (of k, one at a time) are groups, outermost first; `inner` is the k read in chunks.

    Dims are outermost first; the last one of A is `inner` or the innermost rows, of B `inner` or `n`. `packs`: B, a
    constant, is read packed as `[batch..., n, steps..., inner]`.
    """

    groups: tuple[Group, ...]
    a: tuple[Dim, ...]
    b: tuple[Dim, ...]
    rows: tuple[int, ...]
    batch: tuple[int, ...]
    steps: tuple[int, ...]
    inner: int
    n: int
    packs: bool

    def extent(self, *groups: int) -> int:
        return prod(self.groups[g].extent for g in groups)


_Terms = tuple[tuple[int, int], ...]  # (axis, factor), the spatial one first
_Read = tuple[int, int, _Terms]  # extent, stride, terms


def gemm_view(info: Contraction, keeps_rows: bool = False) -> GemmView | NotApplicable:
    """The contraction as GEMMs over tensor maps, or why it is none.

    Args:
        keeps_rows: every axis of the rows is a group of its own.
    """
    if info.per_group:
        return NotApplicable("a grouped convolution")
    extents = {axis.index: axis.extent for axis in info.axes}
    roles = {axis.index: axis.role for axis in info.axes}
    if info.n.extent == 1:
        return NotApplicable("a single column")
    a, b = _reads(info.a, extents), _reads(info.b, extents)
    if a is None or b is None:
        return NotApplicable("an operand is read at an index that is no axis and no window")
    reduced = [axis for _, _, terms in a for axis, _ in terms if roles[axis] == "k"]
    packs = info.b.is_constant and [t[0][0] for *_, t in b if t and roles[t[0][0]] == "k"] != reduced
    packs = packs or (info.b.is_constant and not (b[-1][2] and roles[b[-1][2][0][0]] == "k"))
    if packs:
        if any(len(terms) != 1 or extents[terms[0][0]] != extent for extent, _, terms in b):
            return NotApplicable("B is indexed by more than its own axes: it cannot be packed")
        leading = [axis.index for axis in info.of_role("batch") if axis.extent > 1]
        b = _contiguous([*leading, info.n.index, *reduced], extents)

    joined = _adjacent(a, extents), _adjacent(b, extents)
    groups: list[Group] = []
    for axis in (axis for axis in info.axes if axis.extent > 1):
        before = groups[-1] if groups else None
        if (
            before is not None
            and before.role == axis.role
            and not (keeps_rows and axis.role == "m")
            and _joins(before.axes[-1], axis.index, axis.role, joined, info)
        ):
            groups[-1] = Group(axis.role, (*before.axes, axis.index), (*before.extents, axis.extent))
        else:
            groups.append(Group(axis.role, (axis.index,), (axis.extent,)))
    found = _view(tuple(groups), _dims(a, groups), _dims(b, groups), packs)
    return found if isinstance(found, NotApplicable) else _checked(found)


def packed_order(info: Contraction, view: GemmView) -> tuple[int, ...]:
    """B's dims in the order of `[batch..., n, steps..., inner]`, dims of one element first."""
    wanted = [axis for g in (*view.batch, view.n, *view.steps, view.inner) for axis in view.groups[g].axes]
    unit = [dim for dim, axis in enumerate(info.b.axes) if axis not in wanted]
    return (*unit, *(info.b.axes.index(axis) for axis in wanted))


def _reads(operand: Operand, extents: dict[int, int]) -> list[_Read] | None:
    """Dims longer than one, with the axes that index each; None where an index has another form."""
    found: list[_Read] = []
    stride = prod(operand.shape)
    for extent, axis, window in zip(operand.shape, operand.axes, operand.windows, strict=True):
        stride //= extent
        if extent == 1:
            continue
        if axis >= 0:
            terms: _Terms = ((axis, 1),)
        elif window is not None:
            terms = ((window[0], window[1]), (window[2], window[3]))
        else:
            return None
        found.append((extent, stride, tuple((axis, factor) for axis, factor in terms if extents[axis] > 1)))
    return found


def _contiguous(axes: list[int], extents: dict[int, int]) -> list[_Read]:
    stride = prod(extents[axis] for axis in axes)
    found: list[_Read] = []
    for axis in axes:
        stride //= extents[axis]
        found.append((extents[axis], stride, ((axis, 1),)))
    return found


def _is_plain(read: _Read, extents: dict[int, int]) -> bool:
    extent, _, terms = read
    return len(terms) == 1 and terms[0][1] == 1 and extents[terms[0][0]] == extent


def _adjacent(reads: list[_Read], extents: dict[int, int]) -> set[tuple[int, int]]:
    """Pairs of axes that the operand holds one right outside the other."""
    return {
        (outer[2][0][0], inner[2][0][0])
        for outer, inner in pairwise(reads)
        if _is_plain(outer, extents) and _is_plain(inner, extents) and outer[1] == inner[0] * inner[1]
    }


def _joins(
    outer: int, inner: int, role: str, joined: tuple[set[tuple[int, int]], set[tuple[int, int]]], info: Contraction
) -> bool:
    in_a, in_b = ((outer, inner) in pairs for pairs in joined)
    if role == "m":
        return in_a and info.a.param >= 0  # a padded dim ends where its rows end
    return in_a and in_b


def _dims(reads: list[_Read], groups: list[Group]) -> tuple[Dim, ...]:
    """The dims, those of one group made one."""
    of_axis = {axis: (g, group) for g, group in enumerate(groups) for axis in group.axes}
    found = []
    for extent, stride, terms in reads:
        spatial = [(of_axis[axis], factor) for axis, factor in terms]
        if len(terms) == 1 and len(spatial[0][0][1].axes) > 1:
            g, group = spatial[0][0]
            if terms[0][0] == group.axes[-1]:
                found.append(Dim(group.extent, stride, g))
            continue
        (first, scale), *second = [(g, factor) for (g, _), factor in spatial] or [(-1, 1)]
        window, dilation = second[0] if second else (-1, 0)
        found.append(Dim(extent, stride, first, scale, window, dilation))
    return tuple(found)


def _view(groups: tuple[Group, ...], a: tuple[Dim, ...], b: tuple[Dim, ...], packs: bool) -> GemmView | NotApplicable:
    def ordered(dims: tuple[Dim, ...], role: str) -> tuple[int, ...]:
        used = [g for dim in dims for g in (dim.group, dim.window) if g >= 0 and groups[g].role == role]
        return tuple(dict.fromkeys(used))

    rows, reduced, batch = ordered(a, "m"), ordered(a, "k"), ordered(a, "batch")
    if not rows:
        return NotApplicable("a single row")
    if not a or not b or a[-1].stride != 1 or b[-1].stride != 1:
        return NotApplicable("an operand's innermost elements do not follow one another")
    n = next(g for g, group in enumerate(groups) if group.role == "n")
    if sum(dim.group == n for dim in b) != 1:
        return NotApplicable("B is not read along n")
    plain = [
        g for g in reduced if all(sum(d.group == g and d.scale == 1 and d.window < 0 for d in x) == 1 for x in (a, b))
    ]
    ends = [dims[-1].group for dims in (a, b) if groups[dims[-1].group].role == "k"]
    if not plain or any(g not in plain for g in ends) or len(set(ends)) > 1:
        return NotApplicable("the operands share no contiguous k")
    inner = ends[0] if ends else plain[-1]
    steps = tuple(g for g in reduced if g != inner)
    return GemmView(groups, a, b, rows, batch, steps, inner, n, packs)


def _checked(view: GemmView) -> GemmView | NotApplicable:
    for name, dims, own in (("A", view.a, view.rows), ("B", view.b, (view.n,))):
        if len(dims) > MAX_DIMS:
            return NotApplicable(f"{name} has {len(dims)} dims, a tensor map has {MAX_DIMS}")
        last = dims[-1]
        if last.window >= 0 or last.scale != 1 or last.group not in (view.inner, *own[-1:]):
            return NotApplicable(f"{name} is contiguous along neither k nor its own last axis")
        if last.group != view.inner and len(own) > 1:
            return NotApplicable(f"{name} is contiguous along one of several groups of rows")
    expected = {*range(len(view.groups))}
    seen = {*view.rows, *view.batch, *view.steps, view.inner, view.n}
    if seen != expected or len(view.rows) > _MAX_ROWS:
        return NotApplicable(f"an axis that no operand is read along, or rows of more than {_MAX_ROWS} groups")
    return view
