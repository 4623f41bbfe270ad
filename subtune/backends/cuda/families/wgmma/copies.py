"""How a product's operands get into the ring: a step's boxes of A and B, by the copying thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.families.wgmma.tma import TensorMap, copy_instruction
from subtune.backends.cuda.families.wgmma.walk import Walk
from subtune.core.workload import dtype_bits
from subtune.patterns.gemm_view import GemmView


@dataclass(frozen=True, slots=True)
class Copies:
    """`a` and `b` are the kernel's buffers; `walk` says where a tile and a step are in them.

    Attributes:
        is_known: B is a constant: no kernel before this one writes it.
    """

    a: Any
    b: Any
    maps: tuple[TensorMap, TensorMap]
    walk: Walk
    is_known: bool = False

    @property
    def bk(self) -> int:
        """Elements of k in a stage."""
        return self.walk.tiling.row_bytes * 8 // dtype_bits(self.maps[0].dtype)

    def _boxes(self, operand: int, width: int) -> int:
        """Of `width` rows or columns: one along k, else one for each row of a stage."""
        return 1 if self.maps[operand].is_along_k else width // self.bk

    @property
    def steps_ahead(self) -> int:
        """Of a block's first tile, those whose part of B is copied while the kernel before this one still runs."""
        t, walk = self.walk.tiling, self.walk
        if not self.is_known or t.resident or (walk.added_steps and t.split > 1):
            return 0
        return min(t.stages, walk.part_of_steps, walk.own_steps)

    @property
    def sent_bytes(self) -> Any:
        """Of A, in a step."""
        t = self.walk.tiling
        return self.maps[0].box_bytes * self._boxes(0, t.m) * t.boxes

    @property
    def column_bytes(self) -> int:
        """Of B, in a step."""
        t = self.walk.tiling
        return t.taps * t.columns * t.row_bytes

    def declare(self, suffix: str) -> tuple[Any, Any]:
        """The tensor maps, made on the host."""
        found = []
        for name, buffer, map_ in zip("ab", (self.a, self.b), self.maps, strict=True):
            handle = tirx.Var(f"map_{name}{suffix}", T.handle("tensormap").ty)
            T.Bind(T.tvm_stack_alloca("tensormap", 1), var=handle)
            what = map_.dtype, map_.rank, buffer.data, *map_.arguments
            T.evaluate(T.call_packed("runtime.cuTensorMapEncodeTiled", handle, *what))
            found.append(handle)
        return found[0], found[1]

    def copy_rows(
        self, map_a: Any, corners: Sequence[dict[int, Any]], step: Any, to: Any, stage: Any, barrier: Any
    ) -> None:
        """A's boxes of step `step` for a tile at `corners`, one for each box of its rows."""
        t, map_ = self.walk.tiling, self.maps[0]
        copy, boxes = copy_instruction(map_.rank), self._boxes(0, t.m)
        elements = t.copied_rows * self.bk // t.boxes // boxes
        base = stage * (t.copied_rows * self.bk)
        for i, corner in enumerate(corners):
            for box in range(boxes):
                at = _moved(corner | self.walk.at_step(step), self.walk.view.rows[-1], box * self.bk, boxes > 1)
                there = to.ptr_to([base + (i * boxes + box) * elements])
                T.evaluate(T.ptx[copy](there, T.address_of(map_a), *map_.coordinates(at), barrier))

    def copy_columns(
        self, map_b: Any, corner: dict[int, Any], step: Any, to: Any, slot: Any, barrier: Any, rank: Any
    ) -> None:
        """B's boxes of the step's taps, to `slot`; of a cluster's block `rank` its part, for all of them."""
        t, map_, n = self.walk.tiling, self.maps[1], self.walk.view.n
        copy, receivers = copy_instruction(map_.rank, t.cluster > 1), ((1 << t.cluster) - 1,) if t.cluster > 1 else ()
        width = t.columns // t.cluster
        boxes = self._boxes(1, width)
        columns, tap_elements = width // boxes, t.columns * self.bk
        with T.unroll(t.taps) as tap, T.unroll(boxes) as box:
            own = rank * boxes + box if t.cluster > 1 else box
            there = to.ptr_to([slot * (t.taps * tap_elements) + tap * tap_elements + own * (columns * self.bk)])
            at = corner | self.walk.at_tap(self.walk.at_step(step), tap)
            at = _moved(at, n, own * columns, boxes * t.cluster > 1)
            T.evaluate(T.ptx[copy](there, T.address_of(map_b), *map_.coordinates(at), barrier, *receivers))


def same_place(at: Mapping[int, Any], view: GemmView, other: GemmView) -> dict[int, Any]:
    """The place `at` in `view` as the groups of `other` name it, which has the same rows and columns."""
    own, others = ((*v.batch, *v.rows, v.n) for v in (view, other))
    return {there: at[here] for here, there in zip(own, others, strict=True)}


def _moved(at: dict[int, Any], group: int, by: Any, is_moved: bool) -> dict[int, Any]:
    return {**at, group: at[group] + by} if is_moved else at
