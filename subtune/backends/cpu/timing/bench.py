"""In the runner process: inputs and reference outputs of one workload, and its candidates checked and timed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.timing.condition import FEW_RESULTS, nudged, scales_of, step_of
from subtune.backends.cpu.timing.place import Here, Place
from subtune.core.kernel import Packing
from subtune.core.measurement import Comparison, Failure, FailureKind, Timing
from subtune.core.workload import Arg, Workload
from subtune.measure.clock import few_calls
from subtune.measure.copies import Copies
from subtune.measure.guarded import Guarded, are_same, as_bytes, elements, numpy_dtype
from subtune.measure.hazards import hazards
from subtune.measure.in_turn import InTurn
from subtune.measure.inputs import BLOCK, make_sets, repeated
from subtune.measure.messages import CheckJob, CompareJob, Library, TimeJob
from subtune.measure.pages import Holder
from subtune.measure.verdict import disagreement, is_rounding, scale_of, tolerated

_MAX_COPIES = 32
_PAST_L3 = 4
"""Times L3, past which everything comes from memory: a virtual machine may have more of L3 than its share."""
_MAX_COPIES_PAST_L3 = 128
_COPIES = Copies(1 << 30)
"""Of weights: each packing of many has as many as exceed L3, through which calls rotate."""
_ARRAYS = Copies(1 << 29)
"""Of what no weights are, results among it: they must not take the place of those."""
_LARGE_BYTES = 1 << 20
"""Of an array that is kept between checks: smaller ones are copied anew each time, as fences take addresses; constants
that have none are kept."""
_TIMED = Holder()
"""The workload that has copies of arguments."""
_DISTURBED_S = 5e-3
"""What a call may take for want of a processor: a turn of another process, and some more."""
_FILLS = (0xFF, 0x7F, 0xFF, 0x7F)
"""Bytes that outputs hold before a call, one for each input set: NaN or 3.4e38, as float32."""


@dataclass(frozen=True, slots=True)
class _Right:
    """What is right for one input set: the outputs, and the scale of the errors that each may have."""

    outputs: list[np.ndarray]
    scales: list[float]


class Bench:
    """Input sets and reference outputs for them: the default kernel's, where there is no better `reference`.

    `patience_s`, `rows_past_end`: see `PrepareJob`. `place` is where kernels run: here, if none is given.
    """

    def __init__(
        self,
        workload: Workload,
        device: CPUModel,
        default: Library,
        reference: Library | None = None,
        patience_s: float = math.inf,
        rows_past_end: int = 0,
        place: Place | None = None,
    ) -> None:
        self._rows_past_end = rows_past_end
        self._place: Place = place or _here(device)
        self._workload, self._device = workload, device
        self._default, self._reference = default, reference
        self._inputs: tuple[Arg, ...] = tuple(arg for arg in workload.args if not arg.is_output)
        self._outputs: tuple[Arg, ...] = tuple(arg for arg in workload.args if arg.is_output)
        dangers = hazards(workload)
        self._names, self._nan_spreads = dangers.sets, dangers.nan_spreads
        self._rounds = dangers.rounds or dangers.rounds_to_float8, dangers.rounds_to_float8
        self._blocks = make_sets(workload, dangers, BLOCK)
        """What the input sets consist of: large arrays are repetitions."""
        self._sets = [
            [repeated(block, elements(arg.shape)) for arg, block in zip(self._inputs, blocks, strict=True)]
            for blocks in self._blocks
        ]
        self._pool: dict[tuple[int, int], Guarded] = {}
        self._results = [np.empty(0) for _ in self._outputs]
        """Under which memory for outputs is kept."""
        self._touched: set[tuple[tuple[int, Packing], ...]] = set()
        self._default_calls_s: list[float] = []
        self._right = InTurn[_Right](len(self._names))
        self._right.proceed(self._right_of, patience_s)
        self._place.begin_workload()

    @property
    def default_s(self) -> float:
        return min(self._default_calls_s)

    @property
    def is_whole(self) -> bool:
        return self._right.is_whole

    def prepare(self, patience_s: float) -> None:
        self._right.proceed(self._right_of, patience_s)

    def _right_of(self, index: int) -> _Right:
        name, default = self._names[index], self._default
        kernel = self._place.load(default)
        found = self._run(kernel, default, index, self._default_calls_s)[0]
        if self._reference is not None and name != "adversarial":
            # sums of adversarial inputs overflow by intention, and in the default's order
            found = self._run(self._place.load(self._reference), self._reference, index)[0]
        scales = [scale_of(ref, name == "adversarial") for ref in found]
        if sum(prod(elements(arg.shape)) for arg in self._outputs) <= FEW_RESULTS and not default.packings:
            nudged_scales = self._scales_by_nudging(kernel, default, index, found)
            scales = [max(pair) for pair in zip(scales, nudged_scales, strict=True)]
        return _Right(found, scales)

    @property
    def nbytes(self) -> int:
        references = [right.outputs for right in self._right.made]
        arrays = [*self._sets, *references]
        held = sum(array.nbytes for some in arrays for array in some)
        return held + sum(one.bytes.nbytes for one in self._pool.values())

    def _scales_by_nudging(self, kernel: Any, default: Library, index: int, found: list[np.ndarray]) -> list[float]:
        """See `condition`; zeros for what is not nudged."""
        given = self._sets[index]
        step = 0.0 if self._names[index] == "special" else step_of(given)
        if step == 0.0:
            return [0.0] * len(self._outputs)
        self._sets[index] = nudged(given)
        try:
            return scales_of(self._run(kernel, default, index)[0], found, step)
        finally:
            self._sets[index] = given

    def check(self, job: CheckJob) -> Comparison | Failure:
        kernel, calls_s = self._place.load(job.library), list[float]()
        if wrong := self._check(kernel, job.library, len(self._right.made) if job.patience_s else 1, calls_s):
            return Failure(FailureKind.WRONG_RESULT, wrong)
        if self.default_s < min(calls_s) < _DISTURBED_S:
            calls_s = self._more_calls(kernel, job.library)
        return few_calls(calls_s, self._default_calls_s)

    def _more_calls(self, kernel: Any, library: Library) -> list[float]:
        """Seconds of calls in a row, for a few turns of the processor.

        Where builds have all cores, a kernel of several threads waits for the last one's turn: single calls of one
        that takes 7 us took 3 ms each.
        """
        arguments, count = self._arguments(library, 0), len(self._inputs)
        calls_s: list[float] = []
        end = time.perf_counter() + 2 * _DISTURBED_S
        while not calls_s or time.perf_counter() < end:
            calls_s.append(self._place.run(kernel, arguments[:count], arguments[count:]))
        return calls_s

    def time(self, job: TimeJob) -> Timing | Failure:
        kernel = self._place.load(job.library)
        if not job.checked and (wrong := self._check(kernel, job.library, len(self._right.made))):
            return Failure(FailureKind.WRONG_RESULT, wrong)
        call = self._caller(kernel, job.library)
        return self._place.time(call, job.seconds, job.stop_above_s)

    def compare(self, job: CompareJob) -> Comparison | Failure:
        kernel, beside = self._place.load(job.library), job.other or self._default
        one, other = self._caller(kernel, job.library), self._caller(self._place.load(beside), beside)
        comparison = self._place.compare(one, other, job.seconds)
        # Once more after thousands of calls: a race between threads shows itself seldom.
        if wrong := self._check(kernel, job.library, 1):
            return Failure(FailureKind.WRONG_RESULT, f"in a later run {wrong}")
        return comparison

    def _check(self, kernel: Any, library: Library, sets: int, calls_s: list[float] | None = None) -> str:
        """What is wrong on the first `sets` of the inputs, in words."""
        for index, right in enumerate(self._right.made[:sets]):
            outputs, complaint = self._run(kernel, library, index, calls_s, right)
            if complaint:
                return complaint
            expected = zip(right.outputs, right.scales, self._outputs, strict=True)
            name = self._names[index]
            spreads = self._nan_spreads and name == "special"
            for out, (ref, scale, arg) in zip(outputs, expected, strict=True):
                wrong = disagreement(out, ref, name == "adversarial", scale=scale, nan_spreads=spreads)
                if wrong and not (self._rounds[0] and is_rounding(out, ref, self._rounds[1])):
                    return f"output {arg.name} on {name} inputs: {wrong}"
        return ""

    def _run(
        self, kernel: Any, library: Library, index: int, calls_s: list[float] | None = None, right: _Right | None = None
    ) -> tuple[list[np.ndarray], str]:
        """One call between guard zones: copies of the outputs, and what it wrote that it must not.

        The seconds of the call are added to `calls_s`. Of an output that lies elsewhere, and was found as near to what
        is `right` as it has to be, that takes its place.
        """
        given, inputs = self._given(library, index)
        outputs = [self._output(i, library) for i in range(len(self._outputs))]
        for i, output in enumerate(outputs):
            output.fill(_FILLS[index])
            if right is not None and right.outputs[i].dtype == np.float32:
                output.right = right.outputs[i], tolerated(right.outputs[i], right.scales[i])
        call_s = self._place.run(kernel, inputs, outputs)
        if calls_s is not None:
            calls_s.append(call_s)
        for i, (arg, guarded) in enumerate(zip((*self._inputs, *self._outputs), (*inputs, *outputs), strict=True)):
            if where := guarded.overwritten():
                self._spoilt(library, index, i)
                return [], f"wrote out of bounds of {arg.name}, {where}"
        for i, (arg, guarded, array) in enumerate(zip(self._inputs, inputs, given, strict=True)):
            # who writes to weights does so whatever the other inputs are: megabytes are compared once
            if not (arg.is_constant and index) and not are_same(guarded.bytes, as_bytes(array)):
                self._spoilt(library, index, i)
                return [], f"changed its input {arg.name}"
        for arg, output in zip(self._outputs, outputs, strict=True):
            if arg.dtype == "bool" and output.bytes.size and int(output.bytes.max()) > 1:
                return [], f"output {arg.name} holds a boolean that is neither 0 nor 1, or was not written"
        return [
            output.right[0]
            if output.right and output.is_near
            else output.bytes.copy().view(numpy_dtype(arg.dtype)).reshape(elements(arg.shape))
            for arg, output in zip(self._outputs, outputs, strict=True)
        ], ""

    def _output(self, number: int, library: Library) -> Guarded:
        """Of much memory what a kernel before wrote to: new memory costs as much as a run."""
        arg, is_fenced = self._outputs[number], bool(library.numbers)
        slack = _slack(arg, library.rows_past_end)
        made = partial(Guarded, arg.nbytes, elements(arg.shape), arg.dtype, slack, is_fenced)
        if arg.nbytes < _LARGE_BYTES:
            return made()
        kept = _ARRAYS.guarded(self._results[number], None, _checked(arg, library)[1], made)
        kept.slack[:] = 0xFF
        return kept

    def _given(self, library: Library, index: int) -> tuple[list[np.ndarray], list[Guarded]]:
        """The inputs of a set as a kernel takes them, and copies of them between guard zones."""
        given, guarded = self._packed(library, index), []
        packings, is_dynamic = dict(library.packings), bool(library.numbers)
        for i, (array, arg) in enumerate(zip(given, self._inputs, strict=True)):
            dtype = str(array.dtype) if i in packings else arg.dtype
            slack = _slack(arg, library.rows_past_end)
            made = partial(Guarded.like, array, dtype, slack, is_dynamic)
            is_kept = array.nbytes >= _LARGE_BYTES or (arg.is_constant and not is_dynamic)
            copies, which = _checked(arg, library)
            kept = partial(copies.guarded, self._sets[index][i], packings.get(i), which, made)
            guarded.append(kept() if is_kept else made())
            guarded[-1].origin = self._blocks[index][i], packings.get(i)
        return given, guarded

    def _spoilt(self, library: Library, index: int, position: int) -> None:
        """What a kernel has written to, or behind, is used no more."""
        if position >= len(self._inputs):
            number = position - len(self._inputs)
            _ARRAYS.drop(self._results[number], None, _checked(self._outputs[number], library)[1])
            return
        copies, which = _checked(self._inputs[position], library)
        copies.drop(self._sets[index][position], dict(library.packings).get(position), which)

    def _caller(self, kernel: Any, library: Library) -> Any:
        """Of the place: what calls the kernel on the next copy of its arguments; every copy was touched once.

        In a network a kernel finds its arguments in L2 or L3, where others left them, never in L1: calls rotate through
        copies that together exceed all L2 caches, unless one set already does. Many weights, packed as this kernel
        wants them, belong to a network whose weights do not stay in L3: they come from memory at every run.
        """
        _TIMED.take(self)
        packed = {position: self._first_set(position, packing).nbytes for position, packing in library.packings}
        sizes = [packed.get(i, arg.nbytes) for i, arg in enumerate((*self._inputs, *self._outputs))]
        device = self._device
        pool, most = device.past_l2_bytes, _MAX_COPIES
        if device.comes_from_memory(sum(sizes[i] for i, arg in enumerate(self._inputs) if arg.is_constant)):
            pool, most = max(pool, _PAST_L3 * device.l3_bytes), _MAX_COPIES_PAST_L3
        copies = max(1, min(most, -(-pool // max(1, sum(sizes)))))
        is_fresh = library.packings not in self._touched
        self._touched.add(library.packings)
        return self._place.caller(kernel, partial(self._arguments, library), copies, is_fresh)

    def let_go(self) -> None:
        """Of copies of arguments: those of another workload take their place."""
        self._pool.clear()

    def _arguments(self, library: Library, copy: int) -> list[Guarded]:
        """Those of copy number `copy`. Candidates share them, save for constants packed differently."""
        packings = dict(library.packings)
        arguments = []
        for position, arg in enumerate((*self._inputs, *self._outputs)):
            slack, form = _slack(arg, self._rows_past_end), packings.get(position)
            if arg.is_constant:
                array = self._first_set(position, form)
                made = partial(Guarded.like, array, str(array.dtype) if form else arg.dtype)
                arguments.append(_COPIES.guarded(self._sets[0][position], form, copy, made))
                arguments[-1].origin = self._blocks[0][position], form
                continue
            key = (copy, position)
            if key not in self._pool:
                if arg.is_output:
                    self._pool[key] = Guarded(arg.nbytes, elements(arg.shape), arg.dtype, slack)
                    self._pool[key].fill(0)
                else:
                    self._pool[key] = Guarded.like(self._sets[0][position], arg.dtype, slack)
                    self._pool[key].repeat()
                    self._pool[key].origin = self._blocks[0][position], None
            arguments.append(self._pool[key])
        return arguments

    def _first_set(self, position: int, packing: Packing | None) -> np.ndarray:
        array = self._sets[0][position]
        return _COPIES.packed(array, packing) if packing else array

    def _packed(self, library: Library, index: int) -> list[np.ndarray]:
        arrays = list(self._sets[index])
        for position, packing in library.packings:
            arrays[position] = _COPIES.packed(self._sets[index][position], packing)
        return arrays


@cache
def _here(device: CPUModel) -> Here:
    return Here(device)


def _slack(arg: Arg, rows: int) -> int:
    """Bytes of so many rows of an argument that is no constant."""
    return rows * arg.nbytes // int(arg.shape[0]) if rows and arg.shape and not arg.is_constant else 0


def _checked(arg: Arg, library: Library) -> tuple[Copies, int]:
    """Where the copy of an argument is that a kernel is checked on, and its number: what may be used behind the array,
    and whether there is a fence, differ from kernel to kernel."""
    number = -1 - 2 * _slack(arg, library.rows_past_end) - bool(library.numbers)
    return (_COPIES if arg.is_constant else _ARRAYS), number
