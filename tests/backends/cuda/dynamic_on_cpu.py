"""CUDA kernels of dynamic shapes run without a GPU: compiled once (`cuda_on_cpu`), launched for every instance."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from subtune.backends.base import Device
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.lowering.pipeline import flat
from subtune.core.kernel import Kernel
from subtune.tir.substitute import substitute
from tests.backends.cuda import cuda_on_cpu, hopper_on_cpu

_GRIDS = "emulated_grids"
_TAGS = [f"{kind}Idx.{dim}" for kind in ("block", "thread") for dim in "xyz"]


class DynamicOnCpu:
    """A kernel of all instances, whose first parameters are as many numbers as it has granules."""

    def __init__(self, kernel: Kernel, device: Device, folder: Path) -> None:
        assert isinstance(device.model, CUDAModel)
        self._kernel, self._folder = kernel, folder
        lowered, count = flat(kernel.func, device.model.target()), len(kernel.granules)
        self._host, self._numbers = _host(lowered), list(lowered.params)[:count]
        self._params = [str(param.name) for param in list(lowered.params)[count:]]
        self._launches = cuda_on_cpu.launches_of(self._at([1] * len(self._numbers)))
        code = cuda_on_cpu.source(kernel.func, device.model)
        grids = f'extern "C" {{ int {_GRIDS}[{len(self._launches)}][6]; }}\n'
        placed = [
            (name, args, {tag: f"{_GRIDS}[{i}][{at}]" for at, tag in enumerate(_TAGS)} | _cluster(extents))
            for i, (name, args, extents) in enumerate(self._launches)
        ]
        self._library = ctypes.CDLL(str(cuda_on_cpu.built(grids + code, placed, folder)))

    def __call__(self, numbers: Sequence[int], inputs: Sequence[np.ndarray], outputs: Sequence[Any]) -> list[Any]:
        """The outputs, of these shapes and dtypes, with the threads of every block in one order and in the other.

        Raises:
            AssertionError: the two differ, or something is written outside of the outputs.
        """
        host = self._at(numbers)
        launches = cuda_on_cpu.launches_of(host)
        grids = (ctypes.c_int * 6 * len(launches)).in_dll(self._library, _GRIDS)
        for i, (_, _, extents) in enumerate(launches):
            for at, tag in enumerate(_TAGS):
                grids[i][at] = extents.get(tag, 1)
        packings = dict(self._kernel.packings)
        given = [packings[i](array) if i in packings else array for i, array in enumerate(inputs)]
        results = []
        for backwards in (False, True):
            empty = [np.zeros(shape, dtype) for shape, dtype in outputs]
            arrays = [cuda_on_cpu.guarded(array) for array in (*given, *empty)]
            memory = dict(zip(self._params, (inner for _, inner in arrays), strict=True))
            self._run(host, launches, memory, backwards)
            cuda_on_cpu.check_guards(arrays, [*given, *[None] * len(outputs)])
            results.append([inner for _, inner in arrays[len(given) :]])
        for one, other in zip(*results, strict=True):
            assert one.tobytes() == other.tobytes(), "depends on the order of threads"
        return results[0]

    def _run(self, host: str, launches: list[Any], memory: dict[str, np.ndarray], backwards: bool) -> None:
        memory = memory | cuda_on_cpu.temporaries(host)
        memory |= {
            name: hopper_on_cpu.tensor_map(memory[_buffer(host, of)], numbers) for name, of, numbers in _maps(host)
        }
        for index, (_, args, extents) in enumerate(launches):
            assert 0 not in extents.values(), "a launch of nothing"
            pointers = [int(arg) if arg.isdigit() else memory[_buffer(host, arg)].ctypes.data for arg in args]
            launch = getattr(self._library, f"launch_{index}")
            launch((ctypes.c_void_p * len(pointers))(*pointers), backwards)

    def _at(self, numbers: Sequence[int]) -> str:
        """The host's part at one instance."""
        values = {var: tirx.const(value, "int64") for var, value in zip(self._numbers, numbers, strict=True)}
        func = self._host.with_body(substitute(self._host.body, values))
        mod = tirx.transform.StmtSimplify()(tvm.IRModule({"main": func}))
        return str(mod["main"].script())


def _host(func: Any) -> Any:
    """After the kernels have been taken out of it."""
    named = func.with_attr("global_symbol", "main")
    return tirx.transform.SplitHostDevice()(tvm.IRModule({"main": named}))["main"]


def _cluster(extents: dict[str, int]) -> dict[str, int]:
    return {tag: extent for tag, extent in extents.items() if tag.startswith("cluster")}


def _buffer(host: str, name: str) -> str:
    return cuda_on_cpu.root_of(host, name)


def _maps(host: str) -> list[tuple[str, str, list[int]]]:
    """Tensor maps that the host makes: the name, the buffer, and the arguments behind its address."""
    found = []
    for name, rest in re.findall(r'cuTensorMapEncodeTiled", (\w+), (.*)\)$', host, re.MULTILINE):
        _, _, of, *numbers = [re.sub(r"T\.int64\((\d+)\)", r"\1", one).strip() for one in rest.split(",")]
        found.append((name, of.removesuffix(".data"), [int(number) for number in numbers]))
    return found
