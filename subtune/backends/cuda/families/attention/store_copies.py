"""Keys or values that are a result as well, stored from shared memory by those who do nothing else.

    for tile, for block of keys:  wait full[stage];  stage -> memory, if it is this tile's to store;  free[stage]

A thread has the copy engine store a stage as it is; a warp widens it to float32 itself. They are of the copying
warpgroup, so that nobody who multiplies or copies waits for them.
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
from subtune.backends.cuda.source.calls import address, called
from subtune.tir.rebuild import Rebuild

_WIDE = ROW_BYTES // 2  # halves in a row of a box

_WIDEN = r"""
#ifndef SUBTUNE_WIDEN
#define SUBTUNE_WIDEN
namespace subtune {

__device__ __forceinline__ float2 widened(uint32_t word) {
  return FLOATS;
}

// Rows of `inner` elements in boxes of `keys` x 128 bytes, swizzled by 128 bytes, to rows `pitch` floats apart; of
// `rows` as many as there are. A warp stores whole lines, one at a time: a thread that copies has 24 registers.
__device__ __forceinline__ void widen(void* to, const void* stage, int rows, int keys, int inner, int pitch, int lane) {
  const int pieces = inner / 4, all = min(rows, keys) * pieces;
#pragma unroll 1
  for (int i = lane; i < all; i += 32) {
    const int row = i / pieces, piece = i % pieces;
    const int at = (piece / 16 * keys + row) * 128 + (piece / 2 % 8 ^ row % 8) * 16 + piece % 2 * 8;
    const uint2 words = *reinterpret_cast<const uint2*>(static_cast<const char*>(stage) + at);
    const float2 a = widened(words.x), b = widened(words.y);
    float4* there = reinterpret_cast<float4*>(static_cast<float*>(to) + (row * pitch + piece * 4));
    __stcs(there, make_float4(a.x, a.y, b.x, b.y));
  }
}

}  // namespace subtune
#endif
"""
_FLOATS = {
    "float16": "__half22float2(reinterpret_cast<const __half2&>(word))",
    "bfloat16": "make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u))",
}


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
        """None for what no tensor map stores."""
        pairs = zip(self.copies, self.buffers, strict=True)
        return [None if copy.is_wider else self._tensor_map(copy, buffer) for copy, buffer in pairs]

    def _tensor_map(self, copy: Copied, buffer: Any) -> Any:
        rank, *arguments = copy.lies.arguments(self.walk.knobs.keys)
        found = T.Bind(T.tvm_stack_alloca("tensormap", 1), T.handle("tensormap"))
        T.evaluate(T.call_packed("runtime.cuTensorMapEncodeTiled", found, copy.lies.dtype, rank, buffer.data,
                                 *arguments))  # fmt: skip
        return found

    def emit(self, maps: list[Any], stages: dict[int, tuple[Any, Any, Any]], block: Any, tid: Any) -> None:
        """What the copying warpgroup's threads do: each further warp has a copy, or its first thread.

        Args:
            stages: of each operand: the stages in shared memory, and the barriers `full` and `free` of each.
        """
        for number, (copy, map_) in enumerate(zip(self.copies, maps, strict=True)):
            is_it = tid // 32 == number + 1 if copy.is_wider else tid == 32 * (number + 1)
            self._emit(number, map_, stages[copy.operand], block, is_it, tid % 32)

    def _emit(self, number: int, map_: Any, stage_of: tuple[Any, Any, Any], block: Any, is_it: Any, lane: Any) -> None:
        walk, (shared, full, free), copy = self.walk, stage_of, self.copies[number]
        keys, stages = walk.knobs.keys, walk.knobs.stages

        # fmt: off
        @T.inline
        def body() -> None:
            if is_it:
                stored_turn: T.int32 = block
                stored_tile: T.int32 = walk.tile(block)
                stored_stage: T.int32 = 0
                stored_phase: T.int32 = 0
                while stored_tile < walk.tiles:
                    outer = T.meta_var(walk.outer(stored_tile))
                    first: T.let[T.int32] = walk.first_row(stored_tile)
                    steps: T.let[T.int32] = walk.steps(first)
                    for j in T.serial(steps):
                        T.cuda.mbarrier_wait(full.ptr_to([stored_stage]), stored_phase)
                        if self._is_owner(copy, outer, first, steps - 1 - j):
                            if copy.is_wider:
                                self._widen(number, shared, stored_stage, (steps - 1 - j) * keys, outer, lane)
                            else:
                                T.ptx.fence.proxy.async_.shared__cta()
                                self._store(copy, map_, shared, stored_stage, (steps - 1 - j) * keys, outer)
                                T.evaluate(T.ptx["cp.async.bulk.commit_group"]())
                                T.evaluate(T.ptx["cp.async.bulk.wait_group.read"](0))
                        if copy.is_wider:
                            T.cuda.warp_sync()
                            if lane == 0:
                                T.ptx.mbarrier.arrive.shared.b64(free.ptr_to([stored_stage]), T.uint32(1))
                        else:
                            T.ptx.mbarrier.arrive.shared.b64(free.ptr_to([stored_stage]), T.uint32(1))
                        stored_stage = stored_stage + 1
                        if stored_stage == stages:
                            stored_stage = 0
                            stored_phase = stored_phase ^ 1
                    stored_turn = stored_turn + walk.blocks
                    stored_tile = walk.tile(stored_turn)
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

    def _widen(self, number: int, shared: Any, stage: Any, row: Any, outer: dict[Any, Any], lane: Any) -> None:
        """A lane's part of a stage, as float32."""
        lies, keys = self.copies[number].lies, self.walk.knobs.keys
        terms = sum(Rebuild(outer)(term.value).astype("int64") * term.stride for term in lies.terms)
        to = address(self.buffers[number], terms + row.astype("int64") * lies.pitch)
        of_stage = shared.ptr_to([stage * (chunks(lies.inner) * keys * _WIDE)])
        sizes = [T.int32(size) for size in (keys, lies.inner, lies.pitch)]
        code = _WIDEN.replace("FLOATS", _FLOATS[str(shared.dtype)])
        T.evaluate(called("subtune::widen", [to, of_stage, lies.rows - row, *sizes, lane], code).value)
