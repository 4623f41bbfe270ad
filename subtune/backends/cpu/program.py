"""A compiled model on the CPU: its library, its weights and one arena at fixed addresses, and its threads."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from subtune import runtime
from subtune.backends.host.traced import load_traced
from subtune.core.errors import ArtifactError
from subtune.core.manifest import LIBRARY_NAME, WEIGHTS_NAME, Manifest
from subtune.core.memory_plan import Base, View
from subtune.core.tensor_spec import TensorSpec
from subtune.core.trace import Slice


class CPUProgram:
    """As `subtune.core.program.Program`.

    Args:
        folder: of the artifact.
        code: what holds the functions that `compute` calls, kept as long as the program.
        fixed: the memory that the kernels have the addresses of.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, code: Any, compute: _Compute, fixed: FixedMemory, threads: int
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._code = code
        self._compute = compute
        self._fixed = fixed
        self._threads = threads
        self._plan = manifest.memory
        self._is_complete = not manifest.memory.copies and not manifest.memory.returned
        self._first_output = len(manifest.inputs)
        self._own_thread: ThreadPoolExecutor | None = None
        self._fork_generation = runtime.fork_generation()

    def run(self, arrays: list[np.ndarray]) -> None:
        """On the calling thread if its pool can have the right size, else on a thread of our own.

        The steps around a small kernel count: what it leaves of Python in the caches has to come back from memory.
        """
        if self._own_thread is None and runtime.use_threads(self._threads):
            returned = self._compute(arrays)
        else:
            returned = self._thread().submit(self._compute, arrays).result()
        if not self._is_complete:
            self._finish(arrays, returned)

    def run_at(self, arrays: list[np.ndarray], symbols: tuple[int, ...]) -> None:
        if self._own_thread is None and runtime.use_threads(self._threads):
            returned = self._compute(arrays, symbols)
        else:
            returned = self._thread().submit(self._compute, arrays, symbols).result()
        if not self._is_complete:
            self._finish(arrays, returned)

    def trace(self, arrays: list[np.ndarray], symbols: tuple[int, ...]) -> tuple[Slice, ...]:
        """Of the second of two runs: the first brings code and weights into memory."""
        traced = load_traced(self._folder, self._manifest)
        times = np.zeros((len(traced.steps) + 1, 2), np.int64)  # seconds, nanoseconds
        places = (object.__basicsize__, id(self._fixed.weights), id(self._fixed.arena), *map(id, arrays))

        def twice() -> None:
            for _ in range(2):
                traced.call(*places, *symbols, times.ctypes.data)

        if self._own_thread is None and runtime.use_threads(self._threads):
            twice()
        else:
            self._thread().submit(twice).result()
        if not self._is_complete:
            self._finish(arrays, ())
        since = (times - times[0]) @ np.array([1.0, 1e-9])
        return tuple(Slice(names, float(since[i]), float(since[i + 1])) for i, names in enumerate(traced.steps))

    def __str__(self) -> str:
        return f"{self._threads} threads"

    def _thread(self) -> ThreadPoolExecutor:
        if self._fork_generation != runtime.fork_generation():
            self._own_thread = None  # it stayed in the parent process
            self._fork_generation = runtime.fork_generation()
        if self._own_thread is None:
            self._own_thread = ThreadPoolExecutor(
                1, thread_name_prefix="subtune", initializer=runtime.use_threads, initargs=(self._threads,)
            )
        return self._own_thread

    def _finish(self, arrays: list[np.ndarray], returned: Any) -> None:
        """Write the outputs that no kernel writes."""
        inputs, outputs = arrays[: self._first_output], arrays[self._first_output :]
        for output, view in self._plan.copies:
            wanted = runtime.carried(outputs[output])
            if view.base.is_fixed:
                source = self._fixed.array(view, wanted.nbytes)
            else:
                source = (inputs if view.base is Base.INPUT else outputs)[view.place]
            np.copyto(wanted, runtime.carried(source).reshape(wanted.shape))
        for output, tensor in zip(self._plan.returned, returned, strict=True):
            np.copyto(outputs[output], runtime.as_numpy(tensor, outputs[output].dtype))


@dataclass(frozen=True, slots=True)
class FixedMemory:
    """The memory whose address does not change: weights, and the arena of the tensors in between."""

    weights: np.ndarray
    offsets: tuple[int, ...]
    arena: np.ndarray

    def array(self, view: View, nbytes: int) -> np.ndarray:
        """The elements in the first `nbytes` of `view`, which may be larger than this run's tensor, in one row."""
        return self._bytes(view, nbytes).view(runtime.numpy_dtype(view.dtype))

    def tensor(self, view: View) -> Any:
        data = self._bytes(view, prod(view.shape) * runtime.numpy_dtype(view.dtype).itemsize)
        return runtime.tensor_over(data, view.shape, view.dtype)

    def _bytes(self, view: View, nbytes: int) -> np.ndarray:
        base, start = (self.weights, self.offsets[view.place]) if view.base is Base.WEIGHT else (self.arena, view.place)
        return base[start : start + nbytes]


_Compute = Callable[..., Any]
"""Takes a list of the arrays of all inputs and then of all outputs, and of a model with symbols their values, a tuple;
gives those outputs that the plan says are returned.
"""


def _machine_code(library: Any, fixed: FixedMemory, is_static: bool) -> _Compute:
    """A `main` that takes the addresses of Python's objects: nothing is made of an array on its way there.

    To ask numpy for the address of an array's data takes longer than a small kernel; its C interface has it as the
    first field. Behind the addresses come the symbols' values.
    """
    main = partial(library["main"], object.__basicsize__, id(fixed.weights), id(fixed.arena))

    def compute(arrays: list[np.ndarray]) -> Any:
        main(*map(id, arrays))
        return ()

    def compute_at(arrays: list[np.ndarray], symbols: tuple[int, ...]) -> Any:
        main(*map(id, arrays), *symbols)
        return ()

    return compute if is_static else compute_at


def _vm(executable: Any, fixed: FixedMemory, manifest: Manifest) -> _Compute:
    """A `main` of Relax's VM, which takes tensors; those with a fixed address are bound once."""
    plan = manifest.memory
    tensors = [fixed.tensor(view) for view in plan.arguments if view.base.is_fixed]
    executable["save_function"]("main", "bound", True, *tensors)
    main = executable["bound"]
    first = {Base.INPUT: 0, Base.OUTPUT: len(manifest.inputs)}
    arguments = tuple(
        (first[view.base] + view.place, TensorSpec("", view.shape, view.dtype))
        for view in plan.arguments
        if not view.base.is_fixed
    )
    return lambda arrays: main(*[runtime.as_tensor(arrays[place], spec) for place, spec in arguments])


def load_program(folder: Path, manifest: Manifest, threads: int, share_weights: bool) -> CPUProgram:
    """The program of an artifact for the CPU; its library's content, versions and architecture have been checked.

    Raises:
        ArtifactError: this processor lacks an instruction, there is too little memory, or the library cannot be loaded.
    """
    if missing := runtime.missing_features(manifest.features):
        raise ArtifactError(
            f"{folder} was compiled for {manifest.device} and uses {', '.join(missing)}, which this processor lacks; "
            "compile the model on this machine"
        )
    is_static = not manifest.domain.symbols
    if not is_static and not manifest.memory.takes_addresses:
        raise ArtifactError(
            f"{folder} was compiled for {manifest.domain}, and its program runs in TVM's virtual machine, which takes "
            "no symbols; compile the model with --shape"
        )
    try:
        fixed = FixedMemory(
            _load_weights(folder / WEIGHTS_NAME, share_weights),
            tuple(weight.offset for weight in manifest.weights),
            runtime.private_pages(manifest.memory.arena_nbytes),
        )
    except (OSError, MemoryError, OverflowError, ValueError) as e:
        raise ArtifactError(f"{folder} cannot be loaded: no memory for it ({e}): {manifest.memory_summary()}") from e
    code = runtime.load_library(folder / LIBRARY_NAME)
    if manifest.memory.takes_addresses:
        return CPUProgram(folder, manifest, code, _machine_code(code, fixed, is_static), fixed, threads)
    code = runtime.virtual_machine(code)
    return CPUProgram(folder, manifest, code, _vm(code, fixed, manifest), fixed, threads)


def _load_weights(path: Path, is_shared: bool) -> np.ndarray:
    """The file's bytes: mapped, or read into huge pages where they are many and the system has some.

    With pages of 4 KiB, the processor's table of pages is what a model with large weights waits for.
    """
    size = path.stat().st_size
    with path.open("rb", buffering=0) as f:
        if is_shared or size < runtime.HUGE_PAGE or not runtime.has_huge_pages():
            mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
            return np.frombuffer(mapping, dtype=np.uint8)
        whole = runtime.private_pages(size)
        _read(f, whole)
        return whole


def _read(file: FileIO, whole: np.ndarray) -> None:
    """Fill `whole`; a system call reads at most 2 GiB."""
    done = 0
    while done < len(whole):
        count = file.readinto(whole[done:].data)
        if not count:
            raise ArtifactError(f"{file.name!r} ended early: it was changed while it was read")
        done += count
