"""What the processor can do at best: fused multiply-adds per second, and bytes copied per second.

Both are small kernels that are timed like a framework: in a process of their own, with the same threads, in the same
rounds. The parent builds them; the worker needs TVM's runtime only.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from subtune.backends.base import Device
from subtune.backends.cpu.device import CPUModel

_STEPS = 100_000
"""Multiply-adds that each accumulator goes through in a call: half a millisecond at one a cycle per accumulator."""
_MAX_SETS = 32
_TRIALS = 5
"""Runs by which the faster of two copies is chosen."""


def cpu_of(device: Device) -> CPUModel:
    """The processor's model, of which these limits are."""
    assert isinstance(device.model, CPUModel), "the suite is for processors"
    return device.model


def fma_flops(device: CPUModel) -> float:
    """Operations in one call of the `fma` kernel."""
    return 2.0 * _STEPS * _accumulators(device) * device.lanes() * device.threads


def build_fma(path: Path, device: CPUModel) -> None:
    """Write the library `path`: chains of multiply-adds on registers, on every thread, nothing read or written."""
    from tvm.script import tirx as T

    threads, accumulators, lanes = device.threads, _accumulators(device), device.lanes()

    @T.prim_func
    def main(factors: T.Buffer((2, lanes), "float32"), out: T.Buffer((threads, accumulators, lanes), "float32")):  # type: ignore
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for thread in T.parallel(threads):
            sums = T.alloc_buffer((accumulators, lanes), "float32", scope="local")
            for i in T.unroll(accumulators):
                for lane in T.vectorized(lanes):
                    sums[i, lane] = T.Cast("float32", thread + i)
            for _ in T.serial(_STEPS):
                for i in T.unroll(accumulators):
                    for lane in T.vectorized(lanes):
                        # The sum is a factor, too: x * y alone would not change and be taken out of the loop.
                        sums[i, lane] = sums[i, lane] * factors[0, lane] + factors[1, lane]
            for i in T.unroll(accumulators):
                for lane in T.vectorized(lanes):
                    out[thread, i, lane] = sums[i, lane]

    _export(path, device, {"main": main}, (2, lanes), (threads, accumulators, lanes))


def build_copy(path: Path, device: CPUModel, nbytes: int) -> int:
    """Write the library `path`: an array copied by all threads, in three ways. The bytes that are read and written.

    Args:
        nbytes: of both arrays together; rounded to whole lines.
    """
    from tvm.script import tirx as T

    from subtune.backends.cpu.lowering.streaming import streamed

    threads, lanes = device.threads, device.lanes()
    step = max(lanes, device.line_bytes // 4) * 4
    part = max(step, nbytes // 2 // 4 // threads // step * step)

    @T.prim_func
    def vectors(source: T.Buffer((threads, part), "float32"), out: T.Buffer((threads, part), "float32")):  # type: ignore
        T.func_attr({"global_symbol": "vectors", "tirx.noalias": True})
        for thread in T.parallel(threads):
            for outer in T.serial(part // (4 * lanes)):
                for inner in T.unroll(4):
                    for lane in T.vectorized(lanes):
                        out[thread, (outer * 4 + inner) * lanes + lane] = source[
                            thread, (outer * 4 + inner) * lanes + lane
                        ]

    @T.prim_func
    def library(source: T.Buffer((threads, part), "float32"), out: T.Buffer((threads, part), "float32")):  # type: ignore
        T.func_attr({"global_symbol": "library", "tirx.noalias": True})
        for thread in T.parallel(threads):
            # libc's knows what the processor's own instruction for it is good for
            T.evaluate(
                T.call_extern(
                    "handle", "memcpy", T.address_of(out[thread, 0]), T.address_of(source[thread, 0]), part * 4
                )
            )

    kernels = {"vectors": vectors, "library": library}
    kernels["streamed"] = streamed(vectors).with_attr("global_symbol", "streamed")
    _export(path, device, kernels, (threads, part), (threads, part))
    return 2 * 4 * threads * part


def load_kernel(path: str, threads: int, is_cold: bool = False) -> Callable[[], Any]:
    """The kernels of a library built here, as one function: the faster of them, if there are several.

    Args:
        is_cold: each call takes the next of several sets of arrays, which together exceed all L2 caches: as the tuner
            times its kernels, whose arguments come from L3 at best.
    """
    import numpy as np
    import tvm_ffi

    from subtune import runtime

    runtime.load_runtime()
    about = json.loads(_about(Path(path)).read_text())
    module = tvm_ffi.load_module(path)
    sets = []
    nbytes = sum(4 * math.prod(shape) for shape in about["shapes"])
    for _ in range(min(_MAX_SETS, -(-about["pool_bytes"] // nbytes)) if is_cold else 1):
        arrays = []
        for shape in about["shapes"]:
            array = runtime.aligned_empty(4 * math.prod(shape)).view(np.float32).reshape(shape)
            array[...] = 0.5
            arrays.append(tvm_ffi.from_dlpack(array))
        sets.append(arrays)
    runtime.use_threads(threads)
    calls = [_in_turns([partial(module[name], *arrays) for arrays in sets]) for name in about["kernels"]]
    for call in calls:
        call()
    return calls[0] if len(calls) == 1 else min(calls, key=_least_s)


def _in_turns(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    if len(calls) == 1:
        return calls[0]
    ring = cycle(calls)
    return lambda: next(ring)()


def _least_s(call: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(_TRIALS):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _accumulators(device: CPUModel) -> int:
    """As many as hide the latency of two multiply-adds a cycle, and fit the registers beside the two factors."""
    return min(device.vector_registers - 4, 3 * device.fma_latency)


def _export(path: Path, device: CPUModel, kernels: dict[str, Any], *shapes: tuple[int, ...]) -> None:
    """Write the library, and beside it what it holds: the kernels' names, and the shapes of their two arrays."""
    import tvm

    from subtune.backends.cpu.lowering.pipeline import PIPELINE
    from subtune.backends.host.link import link_shared

    module = tvm.compile(tvm.IRModule(kernels), target=device.target(), tir_pipeline=PIPELINE)
    module.export_library(str(path), fcompile=link_shared)
    about = {"kernels": list(kernels), "shapes": shapes, "pool_bytes": device.past_l2_bytes}
    _about(path).write_text(json.dumps(about))


def _about(path: Path) -> Path:
    return path.with_suffix(".json")
