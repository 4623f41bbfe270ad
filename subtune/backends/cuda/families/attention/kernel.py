"""Attention on Hopper: QK^T, softmax and PV in one kernel; scores never leave registers.

    copying:      for tile: Q;  for block of keys, the last one first:  wait free[stage];  K, V -> stage
    storing:      K or V that is a result as well, from its stages: `store_copies`
    multiplying:  for tile:  S = Q K^T;  P = softmax step of S
                             for the other blocks:  S = Q K^T and O += P V at once;  P' = softmax step of S;  O scaled
                             O += P V;  O / sums -> memory

The softmax is online: rows keep their largest score and the sum of their exponentials so far. While one warpgroup
computes exponentials, another multiplies: they take turns to issue (`turn`), and a warpgroup's own product of the next
scores runs while it waits for its last one.
Sources: Dao, "FlashAttention-2", 2023; Shah et al., "FlashAttention-3", 2024 (ping-pong and pipelining within a
warpgroup); PTX ISA 8, wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.script import tirx as T

from subtune.backends.cuda.building.parsed_once import parsed_once
from subtune.backends.cuda.families.attention.operands import Lying
from subtune.backends.cuda.families.attention.scores import Scores
from subtune.backends.cuda.families.attention.softmax import Softmax
from subtune.backends.cuda.families.attention.store import Store
from subtune.backends.cuda.families.attention.store_copies import StoreCopies
from subtune.backends.cuda.families.attention.tiling import ROWS, Knobs, chunks
from subtune.backends.cuda.families.attention.walk import Walk
from subtune.backends.cuda.families.wgmma.tiling import ROW_BYTES
from subtune.backends.cuda.families.wgmma.tma import copy_instruction
from subtune.tir.rebuild import Rebuild

_NAMES = {"float16": "f16", "bfloat16": "bf16"}
_READY, _TURN = 7, 1  # barriers: of the whole block; the first of the consumers' turns
_K16 = 16


@dataclass(frozen=True, slots=True)
class Operands:
    """Q, K and V: their buffers, and how they lie."""

    buffers: tuple[Any, Any, Any]
    q: Lying
    k: Lying
    v: Lying


# long: one kernel in TVMScript, whose roles share barriers, buffers and indices
@parsed_once()
def attention_func(
    params: tuple[Any, ...], operands: Operands, scores: Scores, knobs: Knobs, walk: Walk, store: Store,
    copies: StoreCopies,
) -> Any:  # fmt: skip
    """The PrimFunc with `params`."""
    softmax = Softmax(scores, walk, name := _NAMES[operands.q.dtype])
    q, k, v = operands.q, operands.k, operands.v
    q_buffer, k_buffer, v_buffer = operands.buffers
    dtype, bn, stages = q.dtype, knobs.keys, knobs.stages
    columns = -(-v.inner // 8) * 8
    q_chunks, v_chunks, wide = chunks(q.inner), chunks(v.inner), ROW_BYTES // 2
    q_chunk, kv_chunk = knobs.rows * wide, bn * wide
    k_elements, v_elements = q_chunks * kv_chunk, v_chunks * kv_chunk
    q_bytes, k_bytes, v_bytes = q_chunks * q_chunk * 2, k_elements * 2, v_elements * 2
    k_steps, n_steps = -(-q.inner // _K16), bn // _K16
    of_scores = f"wgmma.mma_async.sync.aligned.m64n{bn}k16.f32.{name}.{name}"
    of_values = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{name}.{name}"
    less, more = knobs.setmaxnreg
    count, sums = bn // 2, columns // 2
    instructions = [copy_instruction(x.rank) for x in (q, k, v)]
    map_arguments = [q.arguments(knobs.rows), k.arguments(bn), v.arguments(bn)]
    grid, tiles = walk.blocks, walk.tiles

    def declare() -> None:
        for param in params:
            T.arg(param.name, param)

    def base(buffer: Any, lies: Lying) -> Any:
        return T.handle_add_byte_offset(buffer.data, T.int64(lies.first * 2)) if lies.first else buffer.data

    def copy(which: int, lies: Lying, to: Any, at: Any, map_: Any, row: Any, outer: dict[Any, Any], barrier: Any,
             size: int, count: int) -> None:  # fmt: skip
        terms = [Rebuild(outer)(term.value) for term in lies.terms]
        for c in range(count):
            T.evaluate(
                T.ptx[instructions[which]](
                    to.ptr_to([at + c * size]), T.address_of(map_), c * wide, row, *terms, barrier
                )
            )

    def product(registers: Any, desc_q: Any, desc_k: Any, stage: Any) -> None:
        """S = Q K^T for the keys of a stage."""
        for step in range(k_steps):
            chunk, inside = divmod(step, 4)
            T.evaluate(T.ptx[of_scores](
                *[registers[i] for i in range(count)],
                desc_q + T.uint64(chunk * q_chunk * 2 // 16 + inside * 2),
                desc_k + wide_index(stage, k_bytes // 16) + T.uint64(chunk * kv_chunk * 2 // 16 + inside * 2),
                step > 0, 1, 1, 0, 0,
            ))  # fmt: skip

    def weighted(registers: Any, weights: Any, desc_v: Any, stage: Any, is_more: Any) -> None:
        """O += P V for the keys of a stage."""
        for step in range(n_steps):
            T.evaluate(T.ptx[of_values](
                *[registers[i] for i in range(sums)],
                *[weights[step * 4 + i] for i in range(4)],
                desc_v + wide_index(stage, v_bytes // 16) + T.uint64(step * _K16 * ROW_BYTES // 16),
                is_more if step == 0 else True, 1, 1, 1,
            ))  # fmt: skip

    def wide_index(index: Any, by: int) -> Any:
        return T.uint64(by) * T.cast(index, "uint64")

    def free(barrier: Any, lane: Any) -> None:
        with T.If(lane == 0), T.Then():
            T.evaluate(T.ptx.mbarrier.arrive.shared.b64(barrier, T.uint32(1)))

    # fmt: off
    @T.prim_func(check_well_formed=False)
    def main() -> None:
        declare()
        map_q: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", map_q, dtype, map_arguments[0][0], base(q_buffer, q),
                      *map_arguments[0][1:])
        map_k: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", map_k, dtype, map_arguments[1][0], base(k_buffer, k),
                      *map_arguments[1][1:])
        map_v: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", map_v, dtype, map_arguments[2][0], base(v_buffer, v),
                      *map_arguments[2][1:])
        copied = T.meta_var(copies.tensor_maps())
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": knobs.blocks})
        block = T.cta_id([grid])
        tid = T.thread_id([knobs.threads])
        pool = T.SMEMPool()
        shared_q = pool.alloc((q_chunks * q_chunk,), dtype, align=1024)
        shared_k = pool.alloc((stages * k_elements,), dtype, align=1024)
        shared_v = pool.alloc((stages * v_elements,), dtype, align=1024)
        full_q = pool.alloc((1,), "uint64", align=8)
        free_q = pool.alloc((1,), "uint64", align=8)
        full_k = pool.alloc((stages,), "uint64", align=8)
        free_k = pool.alloc((stages,), "uint64", align=8)
        full_v = pool.alloc((stages,), "uint64", align=8)
        free_v = pool.alloc((stages,), "uint64", align=8)
        pool.commit()
        group: T.let[T.int32] = T.tvm_warp_shuffle(0xFFFFFFFF, tid // 128, 0, 32, 32)
        if tid == 0:
            T.ptx.prefetch.tensormap(T.address_of(map_q))
            T.ptx.prefetch.tensormap(T.address_of(map_k))
            T.ptx.prefetch.tensormap(T.address_of(map_v))
            T.ptx.mbarrier.init.shared.b64(full_q.ptr_to([0]), T.uint32(1))
            T.ptx.mbarrier.init.shared.b64(free_q.ptr_to([0]), T.uint32(knobs.consumers))
            for i in T.unroll(stages):
                T.ptx.mbarrier.init.shared.b64(full_k.ptr_to([i]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(full_v.ptr_to([i]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(free_k.ptr_to([i]), T.uint32(knobs.consumers + copies.count(1)))
                T.ptx.mbarrier.init.shared.b64(free_v.ptr_to([i]), T.uint32(knobs.consumers + copies.count(2)))
            T.ptx.fence.mbarrier_init.release.cluster()
            T.ptx.fence.proxy.async_.shared__cta()
        if (group if copies.copies == () else tid // 32) == 0:  # who copies knows the barriers, having made them
            T.ptx.bar.arrive(T.uint32(_READY), T.uint32(knobs.threads))
        else:
            T.ptx.bar.sync(T.uint32(_READY), T.uint32(knobs.threads))
        T.ptx.griddepcontrol.wait()
        stage: T.int32 = 0
        phase: T.int32 = 0
        turn_of_block: T.int32 = block
        tile: T.int32 = walk.tile(block)
        odd: T.int32 = 0
        if group == 0:
            T.ptx["setmaxnreg.dec.sync.aligned.u32"](less)
            if tid == 0:
                while tile < tiles:
                    outer = T.meta_var(walk.outer(tile))
                    first: T.let[T.int32] = walk.first_row(tile)
                    T.cuda.mbarrier_wait(free_q.ptr_to([0]), odd ^ 1)
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(full_q.ptr_to([0]), T.uint32(q_bytes))
                    copy(0, q, shared_q, 0, map_q, first, outer, full_q.ptr_to([0]), q_chunk, q_chunks)
                    steps: T.let[T.int32] = walk.steps(first)
                    for j in T.serial(steps):
                        n: T.let[T.int32] = (steps - 1 - j) * bn
                        T.cuda.mbarrier_wait(free_k.ptr_to([stage]), phase ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(full_k.ptr_to([stage]), T.uint32(k_bytes))
                        copy(1, k, shared_k, stage * k_elements, map_k, n, outer, full_k.ptr_to([stage]), kv_chunk,
                             q_chunks)
                        T.cuda.mbarrier_wait(free_v.ptr_to([stage]), phase ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(full_v.ptr_to([stage]), T.uint32(v_bytes))
                        copy(2, v, shared_v, stage * v_elements, map_v, n, outer, full_v.ptr_to([stage]), kv_chunk,
                             v_chunks)
                        stage = stage + 1
                        if stage == stages:
                            stage = 0
                            phase = phase ^ 1
                    odd = odd ^ 1
                    turn_of_block = turn_of_block + grid
                    tile = walk.tile(turn_of_block)
                T.ptx.griddepcontrol.launch_dependents()  # what is left of the block takes no longer than a launch
            copies.emit(copied, {1: (shared_k, full_k, free_k), 2: (shared_v, full_v, free_v)}, block, tid)
        else:
            T.ptx["setmaxnreg.inc.sync.aligned.u32"](more)
            consumer: T.let[T.int32] = group - 1
            lane: T.let[T.int32] = tid % 128
            turn: T.let[T.int32] = consumer + _TURN
            next_turn: T.let[T.int32] = (consumer + 1) % knobs.consumers + _TURN
            logits = T.alloc_local((count,), "float32")
            weights = T.alloc_local((count // 2,), "uint32")
            held = T.meta_var(softmax.registers())
            output = T.alloc_local((sums,), "float32")
            best = T.alloc_local((2,), "float32")
            newest = T.alloc_local((2,), "float32")
            total = T.alloc_local((2,), "float32")
            zero = T.alloc_local((2,), "float32")
            scale = T.alloc_local((2,), "float32")
            desc_q: T.uint64 = T.uint64(0)
            desc_k: T.uint64 = T.uint64(0)
            desc_v: T.uint64 = T.uint64(0)
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(desc_q), shared_q.ptr_to([consumer * ROWS * wide]), 1, 64, 3)
            T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc_k), shared_k.ptr_to([0]), 1, 64, 3)
            T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc_v), shared_v.ptr_to([0]), kv_chunk * 2 // 16, 64, 3)
            v_stage: T.int32 = 0
            v_phase: T.int32 = 0
            if knobs.consumers > 1:  # noqa: SIM102 - the one is decided here, the other on the device
                if consumer == knobs.consumers - 1:
                    T.ptx.bar.arrive(T.cast(next_turn, "uint32"), T.uint32(256))
            while tile < tiles:
                at = T.meta_var(walk.outer(tile))
                top: T.let[T.int32] = walk.first_row(tile)
                row: T.let[T.int32] = top + consumer * ROWS + lane // 32 * 16 + lane % 32 // 4
                blocks: T.let[T.int32] = walk.steps(top)
                seen: T.let[T.int32] = walk.seen_by_all(top + consumer * ROWS)
                softmax.ask(held, at, row, (blocks - 1) * bn, lane, True)
                T.cuda.mbarrier_wait(full_q.ptr_to([0]), odd)
                T.cuda.mbarrier_wait(full_k.ptr_to([stage]), phase)
                T.ptx.wgmma.fence.sync.aligned()
                product(logits, desc_q, desc_k, stage)
                T.ptx.wgmma.commit_group.sync.aligned()
                T.ptx.wgmma.wait_group.sync.aligned(0)
                free(free_k.ptr_to([stage]), lane)
                if blocks == 1:
                    free(free_q.ptr_to([0]), lane)
                stage = stage + 1
                if stage == stages:
                    stage = 0
                    phase = phase ^ 1
                softmax.prepared(logits, held, at, row, (blocks - 1) * bn, lane, seen, True)
                softmax.largest(logits, best, None)
                for r in T.unroll(2):
                    total[r] = T.float32(0)
                softmax.exponentials(logits, best, total, zero)
                softmax.narrow(weights, logits)
                for step in T.serial(blocks - 1):
                    softmax.ask(held, at, row, (blocks - 2 - step) * bn, lane, False)
                    T.cuda.mbarrier_wait(full_k.ptr_to([stage]), phase)
                    if knobs.consumers > 1:
                        T.ptx.bar.sync(T.cast(turn, "uint32"), T.uint32(256))
                    T.ptx.wgmma.fence.sync.aligned()
                    product(logits, desc_q, desc_k, stage)
                    T.ptx.wgmma.commit_group.sync.aligned()
                    T.cuda.mbarrier_wait(full_v.ptr_to([v_stage]), v_phase)
                    weighted(output, weights, desc_v, v_stage, step > 0)
                    T.ptx.wgmma.commit_group.sync.aligned()
                    if knobs.consumers > 1:
                        T.ptx.bar.arrive(T.cast(next_turn, "uint32"), T.uint32(256))
                    T.ptx.wgmma.wait_group.sync.aligned(1)
                    free(free_k.ptr_to([stage]), lane)
                    if step == blocks - 2:
                        free(free_q.ptr_to([0]), lane)
                    stage = stage + 1
                    if stage == stages:
                        stage = 0
                        phase = phase ^ 1
                    softmax.prepared(logits, held, at, row, (blocks - 2 - step) * bn, lane, seen, False)
                    softmax.largest(logits, newest, best)
                    for r in T.unroll(2):
                        scale[r] = T.Select(newest[r] == best[r], T.float32(1),
                                            T.exp2((best[r] - newest[r]) * T.float32(softmax.factor)))
                        best[r] = newest[r]
                        total[r] = total[r] * scale[r]
                    softmax.exponentials(logits, best, total, zero)
                    T.ptx.wgmma.wait_group.sync.aligned(0)
                    free(free_v.ptr_to([v_stage]), lane)
                    v_stage = v_stage + 1
                    if v_stage == stages:
                        v_stage = 0
                        v_phase = v_phase ^ 1
                    softmax.narrow(weights, logits)
                    for i in T.unroll(sums):
                        output[i] = output[i] * scale[i // 2 % 2]
                T.cuda.mbarrier_wait(full_v.ptr_to([v_stage]), v_phase)
                T.ptx.wgmma.fence.sync.aligned()
                weighted(output, weights, desc_v, v_stage, blocks > 1)
                T.ptx.wgmma.commit_group.sync.aligned()
                for r in T.unroll(2):
                    total[r] = total[r] + T.tvm_warp_shuffle_xor(0xFFFFFFFF, total[r], 1, 32, 32)
                    total[r] = total[r] + T.tvm_warp_shuffle_xor(0xFFFFFFFF, total[r], 2, 32, 32)
                    scale[r] = T.float32(1) / total[r]
                T.ptx.wgmma.wait_group.sync.aligned(0)
                free(free_v.ptr_to([v_stage]), lane)
                v_stage = v_stage + 1
                if v_stage == stages:
                    v_stage = 0
                    v_phase = v_phase ^ 1
                store.emit(output, scale, at, row, lane)
                odd = odd ^ 1
                turn_of_block = turn_of_block + grid
                tile = walk.tile(turn_of_block)
    # fmt: on
    return main
