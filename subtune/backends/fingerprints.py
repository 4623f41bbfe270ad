"""How far apart two devices of a kind are, told by the fingerprints under which a database keeps what was measured."""

from __future__ import annotations

import re
from collections.abc import Collection
from math import inf, log2

_STATE = 1.0
"""Where kernels find their data in another cache."""
_NAME = 1.0
"""Another processor, or other extensions: its units are others, and as wide."""
_CACHE = 0.5
"""Of a doubling of one cache: what is tiled for it is tiled for others, too."""
_VECTOR = 2.0
"""Of a doubling of vectors: tiles are as many columns wide."""

_NUMBER = re.compile(r"\d+")


def cpu_distance(own: str, other: str, states: Collection[str]) -> float:
    """Of `cpu/ARCHITECTURE/NAME/512b/L1-L2-L3/tTHREADS`, with the user's roundings and a state of `states` behind.

    Nothing is told of a processor of another architecture, nor under other roundings. Processors with one byte of
    a cache more differ by nothing.

    >>> zen4, zen5 = (f"cpu/x86_64/znver{n}/512b/{l1}K-1024K-32768K/t8" for n, l1 in ((4, 32), (5, 48)))
    >>> cpu_distance(zen4, zen4, ()), round(cpu_distance(zen4, zen5, ()), 2)
    (0.0, 1.29)
    """
    (head, extra), (other_head, other_extra) = _parted(own, 6), _parted(other, 6)
    if head[:2] != other_head[:2] or len(head) != 6 or len(other_head) != 6 or not (extra ^ other_extra) <= {*states}:
        return inf
    name, vector, caches, threads = (
        float(head[2] != other_head[2]),
        *(_doublings(head[i], other_head[i]) for i in (3, 4, 5)),
    )
    return _NAME * name + _VECTOR * vector + _CACHE * caches + threads + _STATE * bool(extra ^ other_extra)


def cuda_distance(own: str, other: str) -> float:
    """Of `cuda/sm_90/NAME/132sm`, with the user's roundings behind: of one architecture, under the same roundings.

    >>> cuda_distance("cuda/sm_90/nvidia-h200/132sm", "cuda/sm_90/nvidia-h100-pcie/114sm") < 1.3
    True
    >>> cuda_distance("cuda/sm_90/nvidia-h200/132sm", "cuda/sm_80/nvidia-a100/108sm")
    inf
    """
    (head, extra), (other_head, other_extra) = _parted(own, 4), _parted(other, 4)
    if head[:2] != other_head[:2] or len(head) != 4 or len(other_head) != 4 or extra != other_extra:
        return inf
    return _NAME * (head[2] != other_head[2]) + _doublings(head[3], other_head[3])


def _parted(fingerprint: str, count: int) -> tuple[list[str], set[str]]:
    parts = fingerprint.split("/")
    return parts[:count], {*parts[count:]}


def _doublings(own: str, other: str) -> float:
    """By which numbers in two texts differ, all together; inf where there are not as many."""
    pairs = [*map(int, _NUMBER.findall(own))], [*map(int, _NUMBER.findall(other))]
    if len(pairs[0]) != len(pairs[1]):
        return inf
    return sum(abs(log2(max(1, a) / max(1, b))) for a, b in zip(*pairs, strict=True))
