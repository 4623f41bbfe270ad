"""ScatterElements and ScatterND as two kernels: a copy, then a thread for every update.

Where several updates meet in one element and are not combined, any of them may be the one that stays, as ONNX allows.
Combined ones are atomic; sums of floats depend on the order in their last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from tvm import tirx

from subtune.backends.cuda.operators.kernels import Written, written
from subtune.backends.cuda.source.calls import address, called
from subtune.backends.cuda.source.emit import Code, const, load, ramp
from subtune.backends.cuda.source.lanes import ACCESS_BYTES, decoded
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits

_THREADS = 256
_COMBINED = {"add": "Add", "mul": "Mul", "min": "Min", "max": "Max"}
_ATOMIC_BITS = (16, 32, 64)

ATOMICS = r"""
#ifndef SUBTUNE_ATOMICS
#define SUBTUNE_ATOMICS
namespace subtune {
struct Add { template <class T> static __device__ __forceinline__ T of(T x, T y) { return x + y; } };
struct Mul { template <class T> static __device__ __forceinline__ T of(T x, T y) { return x * y; } };
struct Min { template <class T> static __device__ __forceinline__ T of(T x, T y) { return y < x || y != y ? y : x; } };
struct Max { template <class T> static __device__ __forceinline__ T of(T x, T y) { return x < y || y != y ? y : x; } };
template <int BYTES> struct Word;
template <> struct Word<2> { typedef unsigned short type; };
template <> struct Word<4> { typedef unsigned type; };
template <> struct Word<8> { typedef unsigned long long type; };

// at[index] = Op(at[index], value), for whatever number of threads at once.
template <class Op, class T> __device__ __forceinline__ void update(T* at, int index, T value) {
  typedef typename Word<sizeof(T)>::type W;
  union { T value; W word; } old, made;
  W* place = (W*)(at + index);
  old.word = *place;
  while (true) {
    made.value = Op::of(old.value, value);
    W seen = made.word == old.word ? old.word : atomicCAS(place, old.word, made.word);
    if (seen == old.word) return;
    old.word = seen;
  }
}
}  // namespace subtune
#endif
"""


@dataclass(frozen=True, slots=True)
class Scattered:
    """Updates of an array of `shape`: `reduction` is `update`, or how they are combined with what is there.

    `axis`: ScatterElements, with indices and updates of one shape. None: ScatterND, whose indices' last axis counts the
    leading axes of the array.
    """

    dtype: str
    shape: tuple[int, ...]
    index_dtype: str
    indices: tuple[int, ...]
    updates: tuple[int, ...]
    axis: int | None
    reduction: str


def scatter_kernels(op: Scattered) -> Written | NotApplicable:
    """The function of the operator: the array, indices, updates, then its output."""
    if op.reduction != "update" and op.reduction not in _COMBINED:
        return NotApplicable(f"updates by {op.reduction}")
    if op.reduction != "update" and (dtype_bits(op.dtype) not in _ATOMIC_BITS or op.dtype == "bool"):
        return NotApplicable(f"no atomic operations on {op.dtype}")
    if not prod(op.updates) or prod(op.shape) >= 2**31:
        return NotApplicable("no updates, or an array of more elements than 32 bits count")
    inputs = [(op.shape, op.dtype), (op.indices, op.index_dtype), (op.updates, op.dtype)]
    return written(
        inputs, [(op.shape, op.dtype)], lambda x, at, new, y: ([_copy(op, x, y), _updated(op, at, new, y)], [])
    )


def _copy(op: Scattered, x: Any, y: Any) -> Any:
    total = prod(op.shape)
    lanes = gcd(total, ACCESS_BYTES * 8 // dtype_bits(op.dtype)) if op.dtype != "bool" else 1

    def body(code: Code, run: Any) -> None:
        code.store(y, ramp(run * lanes, lanes), load(x, ramp(run * lanes, lanes)))

    return _each(total // lanes, body)


def _updated(op: Scattered, at: Any, new: Any, y: Any) -> Any:
    def body(code: Code, number: Any) -> None:
        place = _place(op, at, decoded(number, op.updates, code.analyzer))
        flat = code.analyzer.simplify(_flat(place, op.shape))
        if op.reduction == "update":
            code.store(y, flat, load(new, number))
            return
        kind = f"subtune::update<subtune::{_COMBINED[op.reduction]}>"
        code.emit(called(kind, [address(y, const(0)), flat, load(new, number)], ATOMICS))

    return _each(prod(op.updates), body)


def _place(op: Scattered, at: Any, own: Sequence[Any]) -> list[Any]:
    """Which element of the array the update at `own` is for."""
    if op.axis is not None:
        index = load(at, _flat(own, op.indices)).astype("int64")
        return [index if axis == op.axis else one for axis, one in enumerate(own)]
    depth, lead = op.indices[-1], len(op.indices) - 1
    first = _flat(own[:lead], op.indices[:-1]) * depth
    return [*(load(at, first + d).astype("int64") for d in range(depth)), *own[lead:]]


def _flat(indices: Sequence[Any], shape: Sequence[int]) -> Any:
    number: Any = const(0)
    for index, extent in zip(indices, shape, strict=True):
        number = number * extent + index
    return number


def _each(count: int, body: Callable[[Code, Any], None]) -> Any:
    """A kernel with a thread for each of `count` numbers."""
    code = Code()
    block, thread = code.thread("blockIdx.x", -(-count // _THREADS)), code.thread("threadIdx.x", _THREADS)
    guard = tirx.LT(block * _THREADS + thread, const(count)) if count % _THREADS else None
    with code.when(guard):
        body(code, code.bind("number", block * _THREADS + thread, count))
    return code.kernel()
