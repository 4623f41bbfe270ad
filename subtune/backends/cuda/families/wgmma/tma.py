"""Tensor maps: how the copy engine walks an operand, and where the box of a tile begins.

A box has a row of 128 bytes, or less, of the innermost dim and is swizzled as the tensor cores read it. What lies
outside of the operand arrives as zeros: that is a convolution's padding, and the tail of M, N and K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import tirx

from subtune.backends.cuda.families.wgmma.tiling import SWIZZLES
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.gemm_view import Dim

_MAX_BOX = 256
_MAX_STEP = 8
_L2_PROMOTION_128B = 2  # CUtensorMapL2promotion


@dataclass(frozen=True, slots=True)
class TensorMap:
    """An operand's tensor map: arguments of `cuTensorMapEncodeTiled`, and the dims, outermost first.

    `is_along_k`: the innermost dim is k; else it is the rows or columns, and a tile is several boxes of 128 bytes.
    """

    dtype: str
    rank: int
    arguments: tuple[Any, ...]
    dims: tuple[Dim, ...]
    offsets: tuple[int, ...]
    is_along_k: bool
    box_bytes: Any
    """A number, or an expression of how many rows there are."""

    def of_rows(self, group: int, most: int, extent: int) -> TensorMap:
        """With boxes of `most` rows, or of all `extent` rows of the group where these are fewer.

        It is left as an expression of both numbers: at another extent the kernel is the same.
        """
        place = next(i for i, dim in enumerate(self.dims) if dim.group == group)
        at = self.rank + self.rank - 1 + self.rank - 1 - place  # behind the extents and the strides, innermost first
        rows = tirx.Min(*(tirx.IntImm("int32", number) for number in (most, extent)))
        arguments = (*self.arguments[:at], rows, *self.arguments[at + 1 :])
        return replace(self, arguments=arguments, box_bytes=self.box_bytes // self.arguments[at] * rows)

    def coordinates(self, at: Mapping[int, Any]) -> list[Any]:
        """Where a box begins, innermost dim first; `at` has every group's first index."""
        found = []
        for dim, offset in zip(self.dims, self.offsets, strict=True):
            index = at[dim.group] * dim.scale if dim.scale != 1 else at[dim.group]
            if dim.group < 0:
                index = 0
            if dim.window >= 0:
                index = index + at[dim.window] * dim.dilation
            found.append(index - offset if offset else index)
        return found[::-1]


def tensor_map(
    dims: tuple[Dim, ...],
    extents: tuple[int, ...],
    offsets: tuple[int, ...],
    dtype: str,
    tile: Mapping[int, int],
    inner: int,
    row_bytes: int,
) -> TensorMap | NotApplicable:
    """The map of a contiguous operand whose dims have `extents` elements in memory, `offsets` into the view's dims.

    Args:
        tile: elements of each group in a box; 1 where it is left out.
        inner: the group of k that is read in chunks.
        row_bytes: of a box along the innermost dim.
    """
    size = dtype_bits(dtype) // 8
    boxes, steps, elements = [], [], 1
    for dim in dims:
        count = tile.get(dim.group, 1)
        if dim is dims[-1]:
            count = row_bytes // size
        step = dim.scale if count > 1 else 1
        elements *= count
        boxes.append((count - 1) * step + 1)
        steps.append(step)
        if step > _MAX_STEP:
            return NotApplicable(f"a stride of {step}, a tensor map has at most {_MAX_STEP}")
        if boxes[-1] > _MAX_BOX:
            return NotApplicable(f"a box of {boxes[-1]} elements, a tensor map has at most {_MAX_BOX}")
    strides = [prod(extents[d + 1 :]) * size for d in range(len(dims) - 1)]
    if any(stride % 16 for stride in strides):
        return NotApplicable("rows that are no multiple of 16 bytes long")
    how = (0, SWIZZLES[row_bytes], _L2_PROMOTION_128B, 0)
    arguments = (*extents[::-1], *strides[::-1], *boxes[::-1], *steps[::-1], *how)
    return TensorMap(dtype, len(dims), arguments, dims, offsets, dims[-1].group == inner, elements * size)


def copy_instruction(rank: int, multicast: bool = False) -> str:
    name = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    return f"{name}.multicast::cluster" if multicast else name


def store_instruction(rank: int) -> str:
    return f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
