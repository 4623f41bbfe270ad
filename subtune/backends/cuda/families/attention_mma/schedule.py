"""Attention on mma.sync, from the chain of two products and a softmax that a model writes.

The loop over keys and what a model does to scores are written here; copies, products and softmax are CUDA C++
(`source`). Where several warps share a row's keys, each leaves its sums, their largest score and the total of their
exponentials in shared memory. So do several blocks, if they are a cluster; else a second kernel merges what each block
wrote.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.attention.operands import Lying, operands_of
from subtune.backends.cuda.families.attention.scores import Scores, scores_of
from subtune.backends.cuda.families.attention_mma.direct import ATTENTION_DIRECT
from subtune.backends.cuda.families.attention_mma.merge import MERGE
from subtune.backends.cuda.families.attention_mma.own_scores import OwnScores, is_few
from subtune.backends.cuda.families.attention_mma.source import ATTENTION
from subtune.backends.cuda.families.attention_mma.tiling import (
    COPY_BYTES,
    DTYPES,
    ROWS,
    Heads,
    Knobs,
    heads_of,
    obstacle,
)
from subtune.backends.cuda.source.calls import address, called, end
from subtune.backends.cuda.source.emit import Code, const, load, prim_func
from subtune.backends.cuda.source.totals import CLUSTER, sync_cluster
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.chain import chain_expressions
from subtune.tir.rebuild import Rebuild

_MERGE_THREADS = 128


def schedule(problem: Problem[CUDAModel], knobs: Knobs) -> Kernel | NotApplicable:
    workload, device = problem.workload, problem.device
    form = chain_expressions(workload.func, workload.num_outputs, one_row=True)
    if isinstance(form, NotApplicable):
        return form
    params = list(workload.func.params)
    operands = operands_of(form, params, DTYPES)
    if isinstance(operands, NotApplicable):
        return operands
    if not form.pattern.is_softmax or device.capability < 80:
        return NotApplicable("no softmax between two products, or no mma.sync")
    size = dtype_bits(operands[0].dtype) // 8
    if why := obstacle(knobs, operands[0].inner, operands[2].inner, size, device):
        return NotApplicable(why)
    heads = heads_of(form, *operands[1:])
    rows, columns = heads.count * heads.rows, operands[2].inner
    sums = tirx.decl_buffer([const(knobs.splits * rows * columns)], "float32", "attention_sums")
    states = tirx.decl_buffer([const(knobs.splits * rows * 2)], "float32", "attention_states")
    least_blocks = knobs.least_blocks(operands[0].inner, columns, device)
    writer = _Writer(heads, scores_of(form), operands, knobs, params, sums, states, least_blocks)
    if not knobs.has_second:
        return Kernel(prim_func(workload.func, [writer.attention()]))
    return Kernel(prim_func(workload.func, [writer.attention(), writer.merge()], [sums, states]))


@dataclass(frozen=True, slots=True)
class _Writer:
    heads: Heads
    scores: Scores
    operands: tuple[Lying, Lying, Lying]
    knobs: Knobs
    params: list[Any]
    sums: Any
    states: Any
    least_blocks: int

    @property
    def _factor(self) -> Any:
        return tirx.const((self.scores.factor or 1.0) * math.log2(math.e), "float32")

    @property
    def _name(self) -> str:
        (q, k, v), knobs = self.operands, self.knobs
        warps: tuple[int, ...] = (knobs.row_warps, knobs.key_warps, knobs.keys, knobs.stages)
        if knobs.is_direct:
            warps = knobs.key_warps, knobs.keys
        numbers = q.inner, v.inner, *warps, knobs.splits, k.pitch, v.pitch, str(is_few(self.heads)).lower()
        text = ", ".join(map(str, numbers))
        if q.dtype == "float32":
            return f"subtune::AttentionTf32<{text}>"
        kind = "AttentionDirect" if knobs.is_direct else "AttentionMma"
        return f"subtune::{kind}<{text}, {str(q.dtype == 'bfloat16').lower()}>"

    def _call(self, name: str, *arguments: Any) -> Any:
        return called(f"{self._name}::{name}", arguments, ATTENTION_DIRECT if self.knobs.is_direct else ATTENTION)

    @property
    def _own(self) -> OwnScores:
        return OwnScores(self.heads, self.scores, self.knobs)

    @property
    def _size(self) -> int:
        """Of an element, in bytes."""
        return dtype_bits(self.operands[0].dtype) // 8

    def _address(self, which: int, env: dict[Any, Any], row: Any) -> Any:
        """Of the first element of a row of Q, K or V."""
        lies = self.operands[which]
        at: Any = row.astype("int64") * lies.pitch + lies.first
        for term in lies.terms:
            at = at + Rebuild(env)(term.value).astype("int64") * term.stride
        return address(self.params[lies.param], at)

    def attention(self) -> Any:
        heads, knobs, form = self.heads, self.knobs, self.heads.form
        (q, _, v), code = self.operands, Code()
        tiles = -(-heads.rows // knobs.rows)
        block = _narrow(code.thread("blockIdx.x", heads.count * tiles * knobs.splits))
        if knobs.cluster:
            code.thread("clusterCtaIdx.x", knobs.splits)
        thread = _narrow(code.thread("threadIdx.x", knobs.threads))
        split, tile = tirx.floormod(block, _int(knobs.splits)), tirx.floordiv(block, _int(knobs.splits))
        head, top = tirx.floordiv(tile, _int(tiles)), tirx.floormod(tile, _int(tiles)) * knobs.rows
        if knobs.across:
            head, top = tirx.floormod(tile, _int(heads.count)), tirx.floordiv(tile, _int(heads.count)) * knobs.rows
        elements = knobs.shared_elements(q.inner, v.inner, self._size)
        shared = code.dynamic("float32" if self._size == 4 else "uint16", elements, "shared")
        sums = code.local("float32", knobs.summed(v.inner) // 2, "sums")
        state, values = code.local("float32", 4, "state"), code.local("float32", knobs.keys // 2, "scores")
        held = self._own.registers(code)
        lane, warp = tirx.floormod(thread, _int(32)), tirx.floordiv(thread, _int(32))
        row = top + tirx.floormod(warp, _int(knobs.row_warps)) * ROWS + tirx.floordiv(lane, _int(4))
        count, keys, inputs = (
            self._count(top, split),
            _int(self.operands[1].rows),
            shared,
        )  # where Q, K and V are multiplied from
        if knobs.is_direct:
            inputs = code.local("uint32", knobs.words(q.inner, v.inner, len(self._own.halves)), "inputs")
        else:
            self._copy_q(code, shared, head, top, thread)
        env, zero = heads.at(head, top), _int(0)
        k_from, v_from = self._address(1, env, zero), self._address(2, env, zero)
        at_sums, at_state, at_values, at_inputs = (address(b, const(0)) for b in (sums, state, values, inputs))
        ends = end(sums), end(state), end(inputs)
        code.emit(self._call("begin", at_sums, at_state, at_inputs, k_from, v_from, split, count, keys, thread, *ends))
        if knobs.is_direct:
            self._take_q(code, inputs, head, row, thread)
        key_warp = tirx.floordiv(warp, _int(knobs.row_warps))
        with code.counted(count, -(-form.extents[form.n] // knobs.step // knobs.splits)) as number:
            step = _narrow(number)
            first = (split + step * knobs.splits) * knobs.step + key_warp * knobs.keys
            self._own.ask(code, held, head, row, first, lane)
            arguments = at_values, at_inputs, k_from, v_from, split, step, count, keys, thread, end(values), end(inputs)
            code.emit(self._call("scores", *arguments))
            self._own.prepare(code, values, held, head, row, first, lane)
            given = at_sums, at_state, at_values, at_inputs, self._factor, step, thread
            code.emit(self._call("softmax", *given, end(sums), end(state), end(values), end(inputs)))
        code.emit(self._call("finish", at_state, end(state)))
        if knobs.merges_here:
            self._merge_here(code, (sums, state, shared), (head, top), thread, split)
        else:
            self._store(code, (sums, state), (head, row, lane), split)
        return code.kernel(self.least_blocks)

    def _count(self, top: Any, split: Any) -> Any:
        """Steps of keys of a block, which are every so manieth of those that its rows see."""
        knobs, form = self.knobs, self.heads.form
        every = -(-form.extents[form.n] // knobs.step)
        steps: Any = _int(every)
        if self.scores.offset is not None:
            rows = form.extents[form.m]
            seen = tirx.min(top + knobs.rows, _int(rows)) if self.heads.group == 1 else _int(rows)
            steps = tirx.min(tirx.floordiv(seen + self.scores.offset + knobs.step - 1, _int(knobs.step)), _int(every))
        return tirx.floordiv(steps - split + (knobs.splits - 1), _int(knobs.splits))

    def _copy_q(self, code: Code, shared: Any, head: Any, top: Any, thread: Any) -> None:
        chunks = -(-self.operands[0].inner // 16) * 16 * self._size // COPY_BYTES
        for i in range(-(-self.knobs.rows * chunks // self.knobs.threads)):
            at = thread + i * self.knobs.threads
            row = tirx.floordiv(at, _int(chunks))
            env = self.heads.at(head, top + row)
            arguments = (
                address(shared, const(0)), self._address(0, env, env[self.heads.form.m]), row,
                tirx.floormod(at, _int(chunks)), tirx.LT(top + row, _int(self.heads.rows)).astype("int32"),
            )  # fmt: skip
            is_ragged = (i + 1) * self.knobs.threads > self.knobs.rows * chunks
            with code.when(tirx.LT(at, _int(self.knobs.rows * chunks)) if is_ragged else None):
                code.emit(self._call("copy_q", *arguments))

    def _take_q(self, code: Code, inputs: Any, head: Any, row: Any, thread: Any) -> None:
        for r in self._own.halves:
            env, is_row = self.heads.at(head, row + r * 8), tirx.LT(row + r * 8, _int(self.heads.rows))
            from_row, inside = self._address(0, env, env[self.heads.form.m]), is_row.astype("int32")
            code.emit(self._call("take_q", address(inputs, const(0)), from_row, _int(r), inside, thread, end(inputs)))

    def _store(self, code: Code, found: tuple[Any, Any], where: tuple[Any, Any, Any], part: Any) -> None:
        """A warp's sums: to the output, or with their state to where blocks' parts are merged."""
        (sums, state), (head, row, lane), columns = found, where, self.operands[2].inner
        for r in self._own.halves:
            with code.when(tirx.LT(row + r * 8, _int(self.heads.rows))):
                place = self._place(part, head, row + r * 8)
                total = load(state, const(2 + r))
                if self.knobs.has_second:
                    is_first = tirx.EQ(tirx.floormod(lane, _int(4)), _int(0))
                    self._store_state(code, is_first, place, load(state, const(r)), total)
                for e in (e for e in range(-(-columns // 8) * 4) if e // 2 % 2 == r):
                    column = tirx.floormod(lane, _int(4)) * 2 + (e // 4 * 8 + e % 2)
                    with code.when(tirx.LT(column, _int(columns)) if e // 4 * 8 + 8 > columns else None):
                        value = load(sums, const(e))
                        if self.knobs.has_second:
                            code.store(self.sums, place * columns + column, value)
                        else:
                            self._output(code, head, row + r * 8, column, value, _over(total))

    def _merge_here(
        self, code: Code, found: tuple[Any, Any, Any], where: tuple[Any, Any], thread: Any, rank: Any
    ) -> None:
        """The parts of the block's warps, and of its cluster's blocks, merged where they lie."""
        shared, (head, top), knobs = found[-1], where, self.knobs
        columns, zero, ends = self.operands[2].inner, const(0), [end(buffer) for buffer in found]
        code.emit(self._call("gather", *(address(buffer, zero) for buffer in found), thread, *ends))
        if knobs.cluster:
            sync_cluster(code)
        blocks = knobs.splits if knobs.cluster else 1
        rows, each = min(self.heads.rows, knobs.rows), knobs.threads * blocks
        pitch = knobs.part_pitch(columns)
        states = knobs.key_warps * knobs.rows * pitch * 4 // self._size
        result = code.local("float32", 3, "merged")
        with code.serial(-(-rows * columns // each)) as number:
            at = (_narrow(number) * blocks + (rank if knobs.cluster else 0)) * knobs.threads + thread
            row, column = tirx.floordiv(at, _int(columns)), tirx.floormod(at, _int(columns))
            with ExitStack() as conditions:
                if rows * columns % each:
                    conditions.enter_context(code.when(tirx.LT(at, _int(rows * columns))))
                if self.heads.rows % rows:
                    conditions.enter_context(code.when(tirx.LT(top + row, _int(self.heads.rows))))
                lies = address(shared, zero), address(shared, const(states))
                self._merged(code, result, (blocks, knobs.key_warps, knobs.rows, pitch), lies, (row, column))
                if knobs.has_second:
                    place, is_first = self._place(rank, head, top + row), tirx.EQ(column, _int(0))
                    code.store(self.sums, place * columns + column, load(result, zero))
                    self._store_state(code, is_first, place, load(result, const(2)), load(result, const(1)))
                else:
                    self._output(code, head, top + row, column, load(result, zero), _over(load(result, const(1))))
        if knobs.cluster:
            sync_cluster(code)  # nobody ends before all have read

    def _place(self, part: Any, head: Any, row: Any) -> Any:
        """Of a row's part among those of all blocks."""
        return part * (self.heads.count * self.heads.rows) + head * self.heads.rows + row

    def _store_state(self, code: Code, condition: Any, place: Any, largest: Any, total: Any) -> None:
        """What belongs to a part's sums, for the second kernel: one thread's, by `condition`."""
        with code.when(condition):
            code.store(self.states, place * 2, largest)
            code.store(self.states, place * 2 + 1, total)

    def _merged(
        self, code: Code, result: Any, numbers: tuple[int, ...], lies: tuple[Any, Any], at: tuple[Any, Any]
    ) -> None:
        """The sum at a row and a column, the total of exponentials and the largest score, from parts that lie there."""
        name = f"subtune::merge_attention<{', '.join(map(str, numbers))}>"
        source = CLUSTER + MERGE if self.knobs.cluster else MERGE
        code.emit(called(name, (address(result, const(0)), *lies, self._factor, *at, end(result)), source))

    def _output(self, code: Code, head: Any, row: Any, column: Any, value: Any, scale: Any) -> None:
        form, out = self.heads.form, self.params[-1]
        value = value * scale
        if form.pattern.nan_is_zero:
            value = tirx.Select(tirx.LT(scale, tirx.const(math.inf, "float32")), value, tirx.const(0.0, "float32"))
        env = self.heads.at(head, row) | {form.j: column, form.sum: value}
        rebuild = Rebuild(env)
        result = rebuild(form.out).astype(str(out.dtype))
        code.emit(tirx.BufferStore(out, result, [rebuild(i) for i in form.out_indices]))

    def merge(self) -> Any:
        """A thread for every column of every row."""
        columns, code = self.operands[2].inner, Code()
        rows = self.heads.count * self.heads.rows
        block = _narrow(code.thread("blockIdx.x", -(-rows * columns // _MERGE_THREADS)))
        at = block * _MERGE_THREADS + _narrow(code.thread("threadIdx.x", _MERGE_THREADS))
        result = code.local("float32", 3, "merged")
        with code.when(tirx.LT(at, _int(rows * columns)) if rows * columns % _MERGE_THREADS else None):
            row, column = tirx.floordiv(at, _int(columns)), tirx.floormod(at, _int(columns))
            zero = const(0)
            lies = address(self.sums, zero), address(self.states, zero)
            self._merged(code, result, (1, self.knobs.splits, rows, columns), lies, (row, column))
            head, inside = tirx.floordiv(row, _int(self.heads.rows)), tirx.floormod(row, _int(self.heads.rows))
            self._output(code, head, inside, column, load(result, zero), _over(load(result, const(1))))
        return code.kernel()


def _over(total: Any) -> Any:
    return tirx.const(1.0, "float32") / total


def _int(value: int) -> Any:
    return tirx.const(value, "int32")


def _narrow(value: Any) -> Any:
    return value.astype("int32")
