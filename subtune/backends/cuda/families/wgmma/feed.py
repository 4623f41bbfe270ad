"""What the copying thread does: the boxes of a step go to a slot of the ring, a constant's first ones before all else.

A constant B is asked for while the kernel in front of this one still runs. Few rows are soon multiplied: what takes
time is to fetch the weights, and a multiprocessor that has nothing to do yet can do that.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.families.wgmma.copies import Copies, same_place

ROLLED = {"disable_unroll": True}
"""Of a loop over steps: the compiler would unroll few of them, which takes it twice as long and wins nothing."""


@dataclass(frozen=True, slots=True)
class Feed:
    """`copies` by `maps`, those of the product and of what is added to it, `to` memory for the steps of A and of B.

    Attributes:
        full, empty: a barrier for every slot of the ring.
    """

    copies: tuple[Copies, ...]
    maps: tuple[tuple[Any, Any], ...]
    to: tuple[Any, Any]
    full: Any
    empty: Any

    def ahead(self, block: Any, rank: Any) -> None:
        """B's boxes of the first steps of a block's first tile, where B is constant: all slots are empty."""
        product, walk = self.copies[0], self.copies[0].walk
        if not product.steps_ahead:
            return
        with T.If(block < walk.tiles), T.Then():
            corner = walk.where(block, rank, 0)
            with T.serial(tirx.min(walk.steps_of(rank), product.steps_ahead), annotations=ROLLED) as slot:
                step, barrier = walk.first_step(rank) + slot, self.full.ptr_to([slot])
                T.evaluate(T.ptx.mbarrier.arrive.expect_tx.shared.b64(barrier, self._nbytes(block, block)))
                product.copy_columns(self.maps[0][1], corner, step, self.to[1], slot, barrier, rank)

    def step(self, tile: Any, block: Any, rank: Any, local: Any, slot: tuple[Any, Any], corners: Any) -> None:
        """The boxes of a step of one tile, by the maps of whichever product the step is of.

        Args:
            local: counts the block's steps of the tile.
            slot: which one, and the parity of the round that has to be over.
            corners: one for each box of the tile's rows.
        """
        (product, *added), (at, parity) = self.copies, slot
        step: Any = T.Bind(product.walk.first_step(rank) + local)
        steps_ahead = product.steps_ahead
        is_new = T.Bind(tirx.Or(tile != block, local >= steps_ahead)) if steps_ahead else True
        with _when(is_new):
            T.evaluate(T.cuda.mbarrier_wait(self.empty.ptr_to([at]), parity))
            T.evaluate(T.ptx.mbarrier.arrive.expect_tx.shared.b64(self.full.ptr_to([at]), self._nbytes(tile, block)))
        if not added:
            self._boxes(0, tile == block, is_new, step, step, at, rank, corners)
            return
        own = product.walk.own_steps
        with T.If(step < own):
            with T.Then():
                self._boxes(0, tile == block, is_new, step, step, at, rank, corners)
            with T.Else():
                self._boxes(1, tile == block, True, step - own, step, at, rank, corners)

    def _boxes(
        self, i: int, is_first: Any, is_new: Any, own_step: Any, step: Any, at: Any, rank: Any, corners: Any
    ) -> None:
        """Of product `i`'s step; B's where it `is_new`, and, of a B that stays, of the block's first tile."""
        one, walk, barrier = self.copies[i], self.copies[0].walk, self.full.ptr_to([at])
        places = [same_place(corner, walk.view, one.walk.view) for corner in corners] if i else corners
        one.copy_rows(self.maps[i][0], places, own_step, self.to[0], at, barrier)
        resident = walk.tiling.resident
        with _when(is_first if resident else is_new):
            slot = step if resident else at
            one.copy_columns(self.maps[i][1], places[0], own_step, self.to[1], slot, barrier, rank)

    def _nbytes(self, tile: Any, block: Any) -> Any:
        """Of a step; what stays is copied with the block's first tile."""
        product = self.copies[0]
        whole = T.uint32(product.sent_bytes + product.column_bytes)
        if not product.walk.tiling.resident:
            return whole
        return tirx.Select(tile == block, whole, T.uint32(product.sent_bytes))


def _when(condition: Any) -> ExitStack:
    """The block of an `if`, unless the condition is known to hold."""
    block = ExitStack()
    if condition is not True:
        block.enter_context(T.If(condition))
        block.enter_context(T.Then())
    return block
