"""What the kernel asks of those who compute numbers of its rows beside the multiplications (`wgmma_rows`)."""

from __future__ import annotations

from typing import Any, Protocol

from subtune.backends.cuda.families.wgmma.store import Store


class RowValues(Protocol):
    """Warps of the copying warpgroup compute numbers of a tile's rows; who stores the tile waits for them."""

    def declare(self, pool: Any) -> Any:
        """Shared memory for them, which all others are given."""

    def prepare(self, shared: Any) -> None:
        """Barriers, by one thread."""

    def compute(self, shared: Any, block: Any, rank: Any, tid: Any) -> None:
        """What the warps of the copying warpgroup do, from the first tile of the block to the last."""

    def bound(self, store: Store, shared: Any, where: tuple[Any, Any, Any, dict[int, Any]], lane: Any) -> Store:
        """`store` with the numbers of a tile, for which it waits.

        `where`: how many tiles the consumer had before, which consumer it is, its first row, and where the tile is.
        """

    def free(self, shared: Any, before: Any, consumer: Any, lane: Any) -> None:
        """The tile is stored."""
