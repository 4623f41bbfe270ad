"""In the runner process of a GPU: inputs and reference outputs of one workload, its candidates checked and timed.

An illegal access ruins the process's context for good: the process then ends without an answer, the candidate counts
as crashed, and the next job starts a new one.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar

import numpy as np

from subtune import runtime
from subtune.backends.cuda import api as cuda_api
from subtune.backends.cuda.building.binaries import provided, read_binaries
from subtune.backends.cuda.building.builder import binaries_of
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.timing.clock import Small, Spin, TimedCalls
from subtune.backends.cuda.timing.memory import GpuBuffer, Judge
from subtune.backends.cuda.timing.tolerance import tolerances
from subtune.core.kernel import ConstantTransform
from subtune.core.measurement import Comparison, Failure, FailureKind, Timing
from subtune.core.numerics import Numerics
from subtune.core.workload import Arg, Workload
from subtune.measure.clock import CONTINUOUS_S, LONG_CALL_S, SETTLE_S, few_calls, time_calls, time_pairs
from subtune.measure.guarded import elements, numpy_dtype
from subtune.measure.hazards import hazards
from subtune.measure.in_turn import InTurn
from subtune.measure.inputs import BLOCK, make_sets
from subtune.measure.messages import LOST, CheckJob, CompareJob, Library, PrepareJob, TimeJob
from subtune.measure.sentinel_base import Patience
from subtune.measure.verdict import is_rounding

_MAX_COPIES = 32
_L2_KEEPS = 1 / 2  # of it, of what was written last
_FILLS = (0xFF, 0x7F, 0xFF, 0x7F)
_LONG_LOOK_S = 0.04  # a search's last round; before it, settling would take longer than looking

_F = TypeVar("_F", bound=Callable[..., Any])


def _survived(method: _F) -> _F:
    """End the process where what failed has taken the GPU's context with it."""

    @wraps(method)
    def wrapped(*args: Any) -> Any:
        try:
            return method(*args)
        except MemoryError:
            raise
        except Exception as e:
            if "OUT_OF_MEMORY" in str(e):
                raise MemoryError(str(e)) from e
            try:
                cuda_api.synchronize()
            except cuda_api.CudaError as lost:
                sys.stderr.write(f"{lost}; first seen as {type(e).__name__}: {str(e)[:300]}\n")
                sys.stderr.flush()
                os._exit(LOST)
            raise

    return wrapped  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _Right:
    """What is right for one input set: the outputs, and the scale of the errors that each may have."""

    outputs: list[GpuBuffer]
    scales: list[float]


class CudaBench:
    """Input sets on the GPU and reference outputs for them: in float64 where that could be built."""

    @_survived
    def __init__(self, workload: Workload, device: CUDAModel, numerics: Numerics, job: PrepareJob) -> None:
        mode = job.mode
        cuda_api.activate()
        assert runtime.has_cuda(), "the parent looks before it starts a runner"
        self._workload, self._device, self._numerics, self._mode = workload, device, numerics, mode
        self._default, self._reference = job.default, job.reference
        self._inputs: tuple[Arg, ...] = tuple(arg for arg in workload.args if not arg.is_output)
        self._outputs: tuple[Arg, ...] = tuple(arg for arg in workload.args if arg.is_output)
        self._stream = cuda_api.Stream()
        self._judge = Judge(device.arch, device.sms, self._stream)
        self._patience = Patience(Spin(device.arch, device.sms, self._stream).seconds)
        self._tolerance = tolerances(workload, numerics)
        dangers = hazards(workload)
        self._blocks = make_sets(workload, dangers, BLOCK)
        self._names, self._nan_spreads = dangers.sets, dangers.nan_spreads
        self._rounds = dangers.rounds or dangers.rounds_to_float8, dangers.rounds_to_float8
        self._is_wild = not dangers.exponentiates
        self._kernels: dict[str, Any] = {}
        self._calls: dict[str, TimedCalls] = {}
        self._given: dict[tuple[int, int, ConstantTransform | None], GpuBuffer] = {}
        self._sums: dict[int, int] = {}
        self._pool: dict[tuple[int, int, ConstantTransform | None], GpuBuffer] = {}
        self._flush = cuda_api.Memory(2 * device.l2_bytes) if mode == "cold" else None
        self._front = Small(device.arch, self._stream) if device.capability >= 90 else None
        self._results = [self._buffer(arg) for arg in self._outputs]
        self._default_calls_s: list[float] = []
        self._right = InTurn[_Right](len(self._names))
        self._right.proceed(self._right_of, job.patience_s)

    @property
    def default_s(self) -> float:
        return min(self._default_calls_s)

    @property
    def is_whole(self) -> bool:
        return self._right.is_whole

    @_survived
    def prepare(self, patience_s: float) -> None:
        self._right.proceed(self._right_of, patience_s)

    @property
    def nbytes(self) -> int:
        held = [*self._given.values(), *self._pool.values(), *self._results]
        references = [right.outputs for right in self._right.made]
        return sum(buffer.nbytes for some in (held, *references) for buffer in some)

    @_survived
    def check(self, job: CheckJob) -> Comparison | Failure:
        kernel = self._load(job.library)
        calls_s: list[float] = []
        if wrong := self._check(kernel, job.library, len(self._right.made) if job.patience_s else 1, calls_s):
            return Failure(FailureKind.WRONG_RESULT, wrong)
        return few_calls(calls_s, self._default_calls_s)

    @_survived
    def time(self, job: TimeJob) -> Timing | Failure:
        kernel = self._load(job.library)
        if not job.checked and (wrong := self._check(kernel, job.library, len(self._right.made))):
            return Failure(FailureKind.WRONG_RESULT, wrong)
        calls = self._timed(kernel, job.library)
        if job.seconds >= _LONG_LOOK_S and (call_s := calls.seconds(1)) > LONG_CALL_S:
            # no patience: the clock goes down by the kernel's own power, and waiting would bring it up again
            sample = partial(_sample, least=math.ceil(CONTINUOUS_S / call_s))
            _settle(calls, sample)
            return time_calls(calls, job.seconds, job.stop_above_s, sample)
        timing: Timing = self._patience.undisturbed(lambda: time_calls(calls, job.seconds, job.stop_above_s, _sample))
        return timing

    @_survived
    def compare(self, job: CompareJob) -> Comparison | Failure:
        kernel, beside = self._load(job.library), job.other or self._default
        one, other = self._timed(kernel, job.library), self._timed(self._load(beside), beside)
        comparison: Comparison = self._patience.undisturbed(
            lambda: Comparison(*time_pairs(one, other, job.seconds, _sample))
        )
        # Once more after thousands of calls: a race between threads shows itself seldom.
        if wrong := self._check(kernel, job.library, 1):
            return Failure(FailureKind.WRONG_RESULT, f"in a later run {wrong}")
        return comparison

    def _right_of(self, index: int) -> _Right:
        is_adversarial = self._names[index] == "adversarial"
        found = self._reference_outputs(index)
        scales = [
            self._judge.scale(ref, arg.dtype, is_adversarial) for ref, arg in zip(found, self._outputs, strict=True)
        ]
        self._run(self._load(self._default), self._default, index, self._results, self._default_calls_s)
        return _Right(found, scales)

    def _reference_outputs(self, index: int) -> list[GpuBuffer]:
        """What is right: in float64 on ordinary inputs; the default kernel's on those that overflow by intention.

        Exponents do not: there the default kernel rounds scores as a file says, which no kernel need do.
        """
        reference = self._reference
        if reference is not None and not (self._is_wild and self._names[index] == "adversarial"):
            wide = [np.asarray(block, _wide(block.dtype)) for block in self._blocks[index]]
            inputs = [
                self._filled(arg, block, wide_dtype(arg.dtype)) for arg, block in zip(self._inputs, wide, strict=True)
            ]
            outputs = [self._buffer(arg, wide_dtype(arg.dtype)) for arg in self._outputs]
            with self._stream.used():
                self._load(reference)(*(buffer.tensor for buffer in (*inputs, *outputs)))
            self._stream.synchronize()
            return outputs
        outputs = [self._buffer(arg) for arg in self._outputs]
        if wrong := self._run(self._load(self._default), self._default, index, outputs):
            raise RuntimeError(wrong)
        return outputs

    def _check(self, kernel: Any, library: Library, sets: int, calls_s: list[float] | None = None) -> str:
        """What is wrong on the first `sets` of the inputs, in words."""
        for index, right in enumerate(self._right.made[:sets]):
            if complaint := self._run(kernel, library, index, self._results, calls_s):
                return complaint
            name = self._names[index]
            for out, ref, scale, arg in zip(self._results, right.outputs, right.scales, self._outputs, strict=True):
                allowed = (name == "adversarial", name == "special" and self._nan_spreads)
                wrong = self._judge.disagreement(out, ref, self._tolerance(arg.dtype), scale, *allowed)
                if wrong and not (self._rounds[0] and is_rounding(out.array(), ref.array(), self._rounds[1])):
                    return f"output {arg.name} on {name} inputs: {wrong}"
        return ""

    def _run(
        self,
        kernel: Any,
        library: Library,
        index: int,
        outputs: list[GpuBuffer],
        calls_s: list[float] | None = None,
    ) -> str:
        """One call between guard zones: what it wrote that it must not, in words. Its seconds go to `calls_s`."""
        packings = dict(library.packings)
        inputs = [self._set_buffer(index, i, packings.get(i)) for i in range(len(self._inputs))]
        complaint = self._complaint(kernel, inputs, outputs, _FILLS[index], calls_s)
        if complaint:  # the next kernel finds all as it was
            for buffer in (*inputs, *outputs):
                buffer.guard()
            for i, buffer in enumerate(inputs):
                buffer.write(self._content(index, i, packings.get(i)))
        return complaint

    def _complaint(
        self, kernel: Any, inputs: list[GpuBuffer], outputs: list[GpuBuffer], fill: int, calls_s: list[float] | None
    ) -> str:
        for output in outputs:
            output.fill(fill)
        arguments = [buffer.tensor for buffer in (*inputs, *outputs)]
        self._stream.synchronize()
        begin = time.perf_counter()
        with self._stream.used():
            kernel(*arguments)
        self._stream.synchronize()
        call_s = time.perf_counter() - begin
        if calls_s is not None:
            calls_s.append(call_s)
        for arg, buffer in zip((*self._inputs, *self._outputs), (*inputs, *outputs), strict=True):
            if where := buffer.overwritten():
                return f"wrote out of bounds of {arg.name}, {where}"
        for arg, buffer in zip(self._inputs, inputs, strict=True):
            if self._judge.checksum(buffer) != self._sums[buffer.address]:
                return f"changed its input {arg.name}"
        return ""

    def _timed(self, kernel: Any, library: Library) -> TimedCalls:
        if library.path not in self._calls:
            self._calls[library.path] = self._new_calls(kernel, library)
        return self._calls[library.path]

    def _new_calls(self, kernel: Any, library: Library) -> TimedCalls:
        """In a network, a kernel reads what another wrote a moment ago, which is in L2 where L2 holds it. Its constants
        were last read a whole run ago, and where it writes was last used for something else. So calls rotate through
        copies of all but such inputs that together exceed L2. `hot` stays with one set; `cold` empties L2 before every
        call.
        """
        packings = dict(library.packings)
        arguments = [self._set_buffer(0, i, packings.get(i)) for i in range(len(self._inputs))]
        passing = [i for i, arg in enumerate(self._inputs) if not arg.is_constant]
        holds = sum(arguments[i].nbytes for i in passing) <= _L2_KEEPS * self._device.l2_bytes
        staying = frozenset(passing if holds else ())
        moving = [buffer.nbytes for i, buffer in enumerate((*arguments, *self._results)) if i not in staying]
        copies = 1
        if self._mode == "rotating":
            copies = max(1, min(_MAX_COPIES, -(-2 * self._device.l2_bytes // max(1, sum(moving)))))
        calls = [partial(kernel, *self._arguments(packings, copy, staying)) for copy in range(copies)]
        return TimedCalls(self._stream, calls, self._flush, self._front)

    def _arguments(self, packings: dict[int, Any], copy: int, staying: Set[int]) -> list[Any]:
        """The tensors of copy number `copy`, those of the positions `staying` being the first's.

        Candidates share them, save for constants packed differently.
        """
        tensors = []
        for position, arg in enumerate((*self._inputs, *self._outputs)):
            if copy == 0 or position in staying:
                inner = position - len(self._inputs)
                own = self._set_buffer(0, position, packings.get(position)) if inner < 0 else self._results[inner]
                tensors.append(own.tensor)
                continue
            key = (copy, position, packings.get(position))
            if key not in self._pool:
                self._pool[key] = self._buffer(arg) if arg.is_output else self._set_buffer(0, position, key[2]).copy()
            tensors.append(self._pool[key].tensor)
        return tensors

    def _set_buffer(self, index: int, position: int, packing: ConstantTransform | None) -> GpuBuffer:
        if self._names[index] == "special" and self._inputs[position].is_constant:
            index = 0  # the same
        key = (index, position, packing)
        if key not in self._given:
            buffer = self._packed(index, position, packing)
            self._given[key] = buffer
            self._sums[buffer.address] = self._judge.checksum(buffer)
        return self._given[key]

    def _packed(self, index: int, position: int, packing: ConstantTransform | None) -> GpuBuffer:
        content = self._content(index, position, packing)
        if packing is None:
            return self._filled(self._inputs[position], content, self._inputs[position].dtype)
        buffer = GpuBuffer(content.nbytes, tuple(content.shape), str(content.dtype))
        buffer.write(content)
        return buffer

    def _content(self, index: int, position: int, packing: ConstantTransform | None) -> np.ndarray:
        block: np.ndarray = self._blocks[index][position]
        return block if packing is None else packing(block)

    def _filled(self, arg: Arg, block: np.ndarray, dtype: str) -> GpuBuffer:
        buffer = self._buffer(arg, dtype)
        buffer.write(block)
        return buffer

    def _buffer(self, arg: Arg, dtype: str = "") -> GpuBuffer:
        shape = elements(arg.shape)
        name = dtype or arg.dtype
        return GpuBuffer(int(np.prod(shape, dtype=np.int64)) * numpy_dtype(name).itemsize, shape, name)

    def _load(self, library: Library) -> Any:
        if library.path not in self._kernels:
            import tvm

            with provided(read_binaries(binaries_of(library.path))):
                kernel = tvm.runtime.load_module(library.path)["main"]
            self._kernels[library.path] = partial(kernel, *library.numbers) if library.numbers else kernel
        return self._kernels[library.path]


def wide_dtype(dtype: str) -> str:
    """What a tensor of `dtype` is in the reference: floating point as float64, the rest as it is."""
    return "float64" if dtype in ("float16", "bfloat16", "float32", "float64") else dtype


def _wide(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64) if wide_dtype(dtype.name) == "float64" else dtype


def _settle(calls: TimedCalls, sample: Callable[[TimedCalls, int], float]) -> None:
    begin = time.perf_counter()
    while time.perf_counter() - begin < SETTLE_S:
        sample(calls, 1)


def _sample(calls: Any, count: int, least: int = 1) -> float:
    return float(calls.seconds(max(count, least)))
