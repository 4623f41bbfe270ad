"""Templates for tests, in the workers' search path as `doubles:schedule`: good kernels, and one of every kind of bad.

The workload is C[i] = A[i] * W[i] + 1 over 1000 float32, W constant; `default` sleeps 0.3 ms and `slow` 100 ms, so that
who wins does not depend on the machine, nor on how late it wakes who sleeps.
"""

from __future__ import annotations

import gc
import importlib
import time
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm.script import tirx as T

from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.core.workload import Workload

DIRECTORY = str(Path(__file__).resolve().parent)
N = 1000


@T.prim_func(s_tir=True)
def graph(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    T.func_attr({"tirx.noalias": True, "layout_free_buffers": [1]})
    for i in range(N):
        with T.sblock("C"):
            vi = T.axis.spatial(N, i)
            C[vi] = A[vi] * W[vi] + T.float32(1)


@T.prim_func(s_tir=True)
def default(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    T.evaluate(T.call_extern("int32", "usleep", 300))
    for i in range(N):
        C[i] = A[i] * W[i] + T.float32(1)


@T.prim_func(s_tir=True)
def vector(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    for i in T.serial(N // 8):
        for j in T.vectorized(8):
            C[i * 8 + j] = A[i * 8 + j] * W[i * 8 + j] + T.float32(1)


@T.prim_func(s_tir=True)
def packed(A: T.Buffer((N,), "float32"), W: T.Buffer((8, N // 8), "float32"), C: T.Buffer((N,), "float32")):
    for i, j in T.grid(N // 8, 8):
        C[i * 8 + j] = A[i * 8 + j] * W[j, i] + T.float32(1)


@T.prim_func(s_tir=True)
def segfault(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    T.evaluate(T.call_extern("int32", "raise", 11))


@T.prim_func(s_tir=True)
def abort(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    T.evaluate(T.call_extern("int32", "abort"))


@T.prim_func(s_tir=True)
def hang(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    T.evaluate(T.call_extern("int32", "pause"))


@T.prim_func(s_tir=True)
def huge(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    tmp = T.alloc_buffer((100 * 2**30,), "uint8")
    for i in range(N):
        tmp[T.int64(i) * T.int64(100_000_000)] = T.uint8(1)
    for i in range(N):
        C[i] = A[i] * W[i] + T.Cast("float32", tmp[T.int64(i) * T.int64(100_000_000)])


@T.prim_func(s_tir=True)
def nan(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    for i in range(N):
        C[i] = A[i] * W[i] + T.float32(1)
    C[17] = T.reinterpret("float32", T.uint32(0x7FC00000))


@T.prim_func(s_tir=True)
def swallows(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    for i in range(N):
        C[i] = T.Select(A[i] <= T.float32(3.4e38), A[i] * W[i] + T.float32(1), T.float32(0))


@T.prim_func(s_tir=True)
def beyond(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    for i in range(N):
        C[i] = A[i] * W[i] + T.float32(1)
    for i in T.vectorized(16):
        C[N + i] = T.float32(0)


@T.prim_func(s_tir=True)
def before(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    for i in range(N):
        C[i] = A[i] * W[i] + T.float32(1)
    for i in T.vectorized(16):
        C[i - 16] = T.float32(0)


@T.prim_func(s_tir=True)
def unwritten(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    for i in range(N - 1):
        C[i] = A[i] * W[i] + T.float32(1)


@T.prim_func(s_tir=True)
def scribbler(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    for i in range(N):
        C[i] = A[i] * W[i] + T.float32(1)
    A[3] = T.float32(0)


@T.prim_func(s_tir=True)
def undefined(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    T.evaluate(T.call_extern("int32", "there_is_no_such_function"))


@T.prim_func(s_tir=True)
def malformed(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    for i in T.thread_binding(N, "threadIdx.x"):
        C[i] = A[i] * W[i] + T.float32(1)


@T.prim_func(s_tir=True)
def slow(A: T.Buffer((N,), "float32"), W: T.Buffer((N,), "float32"), C: T.Buffer((N,), "float32")):
    T.evaluate(T.call_extern("int32", "usleep", 100_000))
    for i in range(N):
        C[i] = A[i] * W[i] + T.float32(1)


KERNELS: dict[str, Any] = {
    "default": default,
    "vector": vector,
    "packed": packed,
    "segfault": segfault,
    "abort": abort,
    "hang": hang,
    "huge": huge,
    "swallows": swallows,
    "nan": nan,
    "beyond": beyond,
    "before": before,
    "unwritten": unwritten,
    "scribbler": scribbler,
    "undefined": undefined,
    "malformed": malformed,
    "slow": slow,
}


def workload() -> Workload:
    return Workload.of(graph, 1)


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    name = candidate.family
    if name == "inapplicable":
        return NotApplicable("no reason at all")
    if name == "raises":
        raise ValueError("a template with a bug")
    if name == "imports torch":
        importlib.import_module("torch")
    if name == "counts garbage":
        return NotApplicable(f"collecting: {gc.isenabled()}, TVM left alone: {gc.get_freeze_count() > 100_000}")
    if name == "counts threads":
        return NotApplicable(f"threads: {tvm_ffi.get_global_func('runtime.NumThreads')()}")
    if name == "sleeps":
        time.sleep(3600)
    if name == "hoards":
        return Kernel(bytearray(100 * 2**30))
    if name == "packed":
        return Kernel(packed, packings=((1, Packing(split=((N // 8, 8),), order=(1, 0))),))
    return Kernel(KERNELS[name])
