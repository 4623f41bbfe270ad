"""Keys or values that are a result as well, stored from shared memory by a thread that does nothing else.

    for tile, for block of keys:  wait full[stage];  stage -> memory, if it is this tile's to store;  free[stage]

The thread is one of the copying warpgroup, so that nobody who multiplies or copies waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.families.attention.copies import Copied
from subtune.backends.cuda.families.attention.tiling import chunks
from subtune.backends.cuda.families.attention.walk import Walk
from subtune.backends.cuda.families.wgmma.tiling import ROW_BYTES
from subtune.backends.cuda.families.wgmma.tma import store_instruction
from subtune.tir.rebuild import Rebuild

_WIDE = ROW_BYTES // 2  # halves in a row of a box


@dataclass(frozen=True, slots=True)
class StoreCopies:
    """The copies of a kernel that walks `walk`, and the function's buffers for them."""

    walk: Walk
    copies: tuple[Copied, ...]
    buffers: tuple[Any, ...]

    def count(self, operand: int) -> int:
        """Threads that store a stage of operand 1, the keys, or 2, the values."""
        return sum(copy.operand == operand for copy in self.copies)

    def tensor_maps(self) -> list[Any]:
        return [self._tensor_map(copy, buffer) for copy, buffer in zip(self.copies, self.buffers, strict=True)]

    def _tensor_map(self, copy: Copied, buffer: Any) -> Any:
        rank, *arguments = copy.lies.arguments(self.walk.knobs.keys)
        found = T.Bind(T.tvm_stack_alloca("tensormap", 1), T.handle("tensormap"))
        T.evaluate(T.call_packed("runtime.cuTensorMapEncodeTiled", found, copy.lies.dtype, rank, buffer.data,
                                 *arguments))  # fmt: skip
        return found

    def emit(self, maps: list[Any], stages: dict[int, tuple[Any, Any, Any]], block: Any, tid: Any) -> None:
        """What the copying warpgroup's threads do: the first of each further warp has a copy.

        Args:
            stages: of each operand: the stages in shared memory, and the barriers `full` and `free` of each.
        """
        for number, (copy, map_) in enumerate(zip(self.copies, maps, strict=True)):
            self._emit(copy, map_, stages[copy.operand], block, tid == 32 * (number + 1))

    def _emit(self, copy: Copied, map_: Any, stage_of: tuple[Any, Any, Any], block: Any, is_it: Any) -> None:
        walk, (shared, full, free) = self.walk, stage_of
        keys, stages = walk.knobs.keys, walk.knobs.stages

        # fmt: off
        @T.inline
        def body() -> None:
            if is_it:
                stored_tile: T.int32 = block
                stored_stage: T.int32 = 0
                stored_phase: T.int32 = 0
                while stored_tile < walk.tiles:
                    outer = T.meta_var(walk.outer(stored_tile))
                    first: T.let[T.int32] = walk.first_row(stored_tile)
                    steps: T.let[T.int32] = walk.steps(first)
                    for j in T.serial(steps):
                        T.cuda.mbarrier_wait(full.ptr_to([stored_stage]), stored_phase)
                        if self._is_owner(copy, outer, first, steps - 1 - j):
                            T.ptx.fence.proxy.async_.shared__cta()
                            self._store(copy, map_, shared, stored_stage, (steps - 1 - j) * keys, outer)
                            T.evaluate(T.ptx["cp.async.bulk.commit_group"]())
                            T.evaluate(T.ptx["cp.async.bulk.wait_group.read"](0))
                        T.ptx.mbarrier.arrive.shared.b64(free.ptr_to([stored_stage]), T.uint32(1))
                        stored_stage = stored_stage + 1
                        if stored_stage == stages:
                            stored_stage = 0
                            stored_phase = stored_phase ^ 1
                    stored_tile = stored_tile + walk.blocks
        # fmt: on

        body()

    def _is_owner(self, copy: Copied, outer: dict[Any, Any], first: Any, block: Any) -> Any:
        """Of all tiles that read a block of keys, one stores it."""
        heads = [outer[axis] % count == 0 for axis, count in copy.sharing]
        return tirx.all(self.walk.is_own(first, block), *heads)

    def _store(self, copy: Copied, map_: Any, shared: Any, stage: Any, row: Any, outer: dict[Any, Any]) -> None:
        """A stage's boxes of 128 bytes; what is beyond the copy's rows and columns stays where it is."""
        size, count = self.walk.knobs.keys * _WIDE, chunks(copy.lies.inner)
        terms = [Rebuild(outer)(term.value) for term in copy.lies.terms]
        for c in range(count):
            there = shared.ptr_to([(stage * count + c) * size])
            T.evaluate(T.ptx[store_instruction(copy.lies.rank)](T.address_of(map_), c * _WIDE, row, *terms, there))
