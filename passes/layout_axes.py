"""How a permutation below an operator becomes a permutation above it: pure functions on axes and shapes.

Throughout, `x = permute_dims(y, p)`: axis i of x is axis p[i] of y.
"""

from __future__ import annotations

from collections.abc import Sequence

Perm = tuple[int, ...]


def inverse(p: Perm) -> Perm:
    result = [0] * len(p)
    for i, axis in enumerate(p):
        result[axis] = i
    return tuple(result)


def to_first(rank: int) -> Perm:
    """The permutation that moves the last axis to place 1: channels last -> channels first."""
    return (0, rank - 1, *range(1, rank - 1))


def permuted(values: Sequence[int], p: Perm) -> tuple[int, ...]:
    """What the dims (or any numbers per axis) of y are for x."""
    return tuple(values[axis] for axis in p)


def unpermuted(values: Sequence[int], p: Perm) -> tuple[int, ...]:
    """What numbers per axis of x are for y."""
    return permuted(values, inverse(p))


def without(p: Perm, removed: Sequence[int]) -> Perm:
    """The permutation left when the axes `removed` of x (hence p[removed] of y) are gone."""
    gone = {p[axis] for axis in removed}
    left = sorted(axis for axis in p if axis not in gone)
    return tuple(left.index(axis) for axis in p if axis not in gone)


def reshape_through(source: Sequence[int], p: Perm, target: Sequence[int]) -> tuple[tuple[int, ...], Perm] | None:
    """`reshape(permute(y, p), target)` as `permute(reshape(y, shape), q)`: (shape, q), or None if none exists.

    Possible when the reshape splits and merges only axes of x that are neighbours in y too, in the same order.

    Args:
        source: shape of y.
        target: shape the reshape makes.
    """
    blocks = _blocks(permuted(source, p), tuple(target))
    if blocks is None:
        return None
    for ins, _ in blocks:
        in_y = [p[axis] for axis in ins if source[p[axis]] != 1]
        between = [axis for axis in range(min(in_y, default=0), max(in_y, default=-1) + 1) if source[axis] != 1]
        if in_y != between:
            return None
    # Blocks in the order of y; those of unit dims only (no place of their own in y) go first.
    order = sorted(range(len(blocks)), key=lambda b: _place(blocks[b][0], source, p))
    shape: list[int] = []
    starts: dict[int, int] = {}
    for b in order:
        starts[b] = len(shape)
        shape.extend(target[axis] for axis in blocks[b][1])
    q: list[int] = []
    for b, (_, outs) in enumerate(blocks):
        q.extend(starts[b] + offset for offset in range(len(outs)))
    return tuple(shape), tuple(q)


def order_within(source: Sequence[int], p: Perm, target: Sequence[int]) -> Perm | None:
    """A permutation of y inside its runs of axes that the reshape of `permute(y, p)` merges or splits together, after
    which they are in the order of x; None when such axes are no neighbours in y."""
    blocks = _blocks(permuted(source, p), tuple(target))
    if blocks is None:
        return None
    order = list(range(len(p)))
    for ins, _ in blocks:
        in_y = [p[axis] for axis in ins]
        if not in_y:
            continue
        low = min(in_y)
        if sorted(in_y) != list(range(low, low + len(in_y))):
            return None
        order[low : low + len(in_y)] = in_y
    return tuple(order)


def _place(ins: tuple[int, ...], source: Sequence[int], p: Perm) -> tuple[int, int]:
    real = [p[axis] for axis in ins if source[p[axis]] != 1]
    return (1, real[0]) if real else (0, min((p[axis] for axis in ins), default=-1))


def _blocks(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """The reshape as independent pieces: (axes before, axes after) of equal sizes, as small as possible."""
    blocks: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        ins, outs, size_in, size_out = [], [], 1, 1
        if i < len(before) and (j >= len(after) or before[i] == 1 != after[j]):
            ins, i = [i], i + 1
            size_in = before[ins[0]]
        elif j < len(after) and (i >= len(before) or after[j] == 1 != before[i]):
            outs, j = [j], j + 1
            size_out = after[outs[0]]
        else:
            ins, outs, size_in, size_out, i, j = [i], [j], before[i], after[j], i + 1, j + 1
        while size_in != size_out:
            if size_in < size_out and i < len(before):
                ins.append(i)
                size_in *= before[i]
                i += 1
            elif size_out < size_in and j < len(after):
                outs.append(j)
                size_out *= after[j]
                j += 1
            else:
                return None  # a dim of extent 0, or shapes of different sizes
        blocks.append((tuple(ins), tuple(outs)))
    return blocks
