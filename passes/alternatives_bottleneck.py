"""Fusing around a depthwise convolution: 1x1 convolution, depthwise, 1x1 convolution, as mobile networks have them."""

from __future__ import annotations

from collections.abc import Iterator

from subtune.core.graph import Group, OpNode
from subtune.passes.neighbours import Neighbours, Proposal, conv2d_filters, nbytes, pointwise_filters


def bottlenecks(around: Neighbours, depthwise: Group) -> Iterator[Proposal]:
    """The depthwise convolution with the 1x1 convolution that alone reads it, and with the one that feeds it.

    What lies between is the widest tensor of such a block, and need not leave the cache.
    """
    if not _is_depthwise(around.anchor(depthwise)):
        return
    link = around.after(depthwise)
    if link is None or link.views or not _reads(around, link.user, depthwise):
        return
    parts = [depthwise, link.user]
    expand = next(
        (g for g, before in around.before(depthwise) if not before.views and pointwise_filters(around.anchor(g))), None
    )
    if expand is not None and _reads_at(around.anchor(depthwise), expand):
        parts.insert(0, expand)
    names = ", ".join(group.anchor for group in parts)
    why = f"{names} share their rows of pixels: what lies between never leaves the cache"
    ops = frozenset[str]().union(*(group.ops for group in parts))
    yield Proposal("one kernel", why, (ops,), 2 * sum(nbytes(group) for group in parts[:-1]))


def _reads(around: Neighbours, group: Group, producer: Group) -> bool:
    return bool(pointwise_filters(around.anchor(group))) and _reads_at(around.anchor(group), producer)


def _reads_at(anchor: OpNode, producer: Group) -> bool:
    """Whether the convolution's image is what `producer` makes, and nothing else is."""
    made = producer.outputs[0].source
    return anchor.inputs[0].source == made and all(value.source != made for value in anchor.inputs[1:])


def _is_depthwise(anchor: OpNode) -> bool:
    filters = conv2d_filters(anchor)
    image = anchor.inputs[0].tensor.shape if filters else ()
    return len(filters) == 4 and filters[3] == 1 and filters[0] == image[-1] and filters[1:3] != (1, 1)
