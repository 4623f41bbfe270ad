"""Fusing a max pooling with the convolution it reads: in image networks the largest tensor of all is between them."""

from __future__ import annotations

from collections.abc import Iterator

from subtune.core.graph import Kind
from subtune.passes.alternatives_merge import moved_inputs
from subtune.passes.neighbours import Neighbours, Proposal, nbytes

_POOL = "nn.max_pool2d"
_MAX_CHANNELS = 8
"""Of the image: with more, the convolution is a product like others, whose tiles are no whole rows of pixels."""


def pooled_stems(around: Neighbours) -> Iterator[Proposal]:
    """A convolution of few channels, and the max pooling that alone reads it; with the copies before it as well."""
    for group in around.graph.groups:
        anchor = around.anchor(group)
        if anchor.kind is not Kind.CONTRACTION or anchor.op != "nn.conv2d":
            continue
        if anchor.inputs[0].tensor.shape[-1] not in range(1, _MAX_CHANNELS + 1):
            continue
        link = around.after(group)
        if link is None or link.views or around.anchor(link.user).op != _POOL or len(link.user.inputs) != 1:
            continue
        why = f"{link.user.anchor} is taken of {group.anchor}'s rows while they are in shared memory"
        ops, stake = frozenset(group.ops) | frozenset(link.user.ops), 2 * nbytes(group)
        yield Proposal("one kernel", why, (ops,), stake)
        for moved in moved_inputs(around, group):
            both = f"{why}; {moved.why}"
            yield Proposal("one kernel, inputs moved", both, (ops | moved.ops,), stake + moved.stake_bytes)
