"""A compiled model on a GPU: weights, activations, inputs and outputs at fixed addresses, and one CUDA graph.

The memory plan gives every tensor its place before the first run, so the whole model is captured once, as it is loaded,
and a run is a copy of the inputs, one launch and a copy of the outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from subtune import runtime
from subtune.backends.cuda import api as cuda_api
from subtune.backends.cuda.buffers import Buffers
from subtune.backends.cuda.building.binaries import provided, read_binaries
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.dynamic_program import DynamicCUDAProgram, Tensors
from subtune.backends.cuda.turns import Turns
from subtune.backends.host.instrument import calls_between
from subtune.backends.host.traced import Traced, load_traced
from subtune.core.errors import ArtifactError, TargetError
from subtune.core.manifest import BINARIES_NAME, LIBRARY_NAME, WEIGHTS_NAME, Manifest
from subtune.core.memory_plan import View
from subtune.core.tensor_spec import TensorSpec
from subtune.core.trace import Slice

logger = logging.getLogger(__name__)


class CUDAProgram(Buffers):
    """As `subtune.core.program.Program`, for arrays of the host; `replay` and `device_seconds` leave them on the GPU.

    Attributes:
        is_captured: whether a run is one CUDA graph. What sorts or scatters allocates in between, and is not.
    """

    def __init__(self, manifest: Manifest, executable: Any, weights: np.ndarray):
        self._manifest = manifest
        self._executable = executable
        self._stream = cuda_api.Stream()
        self._turns = Turns()
        self._weights = cuda_api.Memory(weights.nbytes)
        self._weights.write(weights)
        plan = manifest.memory
        self._arena = cuda_api.Memory(plan.arena_nbytes)
        self._given = tuple(cuda_api.Memory(spec.nbytes) for spec in manifest.inputs)
        self._taken = tuple(cuda_api.Memory(spec.nbytes) for spec in manifest.outputs)
        for memory in (*self._given, self._arena):
            memory.fill(0)
        executable["save_function"]("main", "bound", True, *(self._tensor(view) for view in plan.arguments))
        self._main = executable["bound"]
        self._returned: Any = None
        # Memory that a kernel takes while it runs is its thread's, and TVM frees it when that thread needs more: a
        # graph needs a thread that runs nothing else.
        self._own = ThreadPoolExecutor(1, thread_name_prefix="subtune")
        self._graph = self._own.submit(self._captured).result()

    @property
    def is_captured(self) -> bool:
        return self._graph is not None

    def replay(self) -> None:
        """One run on what the GPU's input buffers hold; returns when it is done."""
        self._launch()
        self._stream.synchronize()

    def device_seconds(self, runs: int = 20) -> float:
        """Mean time of one of `runs` runs in a row, without copies from and to the host."""
        cuda_api.activate()
        begin, end = cuda_api.Event(), cuda_api.Event()
        self._launch()
        launch = partial(self._graph.launch, self._stream) if self._graph is not None else self._launch
        begin.record(self._stream)
        for _ in range(runs):  # of short kernels, what the host does between launches would be the time
            launch()
        end.record(self._stream)
        return end.seconds_since(begin) / runs

    def run(self, arrays: list[np.ndarray]) -> None:
        with self._turns.on_host():
            self._run(arrays)

    def run_on(self, stream: int, given: Tensors, taken: Tensors, symbols: tuple[int, ...] = ()) -> None:
        """One run on tensors that lie on the GPU, as work of the caller's stream: it may return before that is done.

        Args:
            stream: CUDA's handle, of the first GPU's primary context.
            given, taken: address and bytes of the contiguous tensors of all inputs, and of all outputs.
        """
        plan = self._manifest.memory
        assert not plan.returned, "such outputs pass through the host"
        cuda_api.activate()
        queue = cuda_api.Stream(stream)
        with self._turns.on(queue):
            for (address, nbytes), memory in zip(given, self._given, strict=True):
                queue.copy(memory.address, address, nbytes)
            self._launch(queue)
            for (address, nbytes), memory in zip(taken, self._taken, strict=True):
                queue.copy(address, memory.address, nbytes)
            for output, view in plan.copies:
                memory, offset = self._place(view)
                address, nbytes = taken[output]
                queue.copy(address, memory.address + offset, nbytes)

    def _run(self, arrays: list[np.ndarray]) -> None:
        self.feed(arrays[: len(self._given)])
        self.replay()
        results = arrays[len(self._given) :]
        for array, memory in zip(results, self._taken, strict=True):
            memory.read_into(_bytes(array))
        plan = self._manifest.memory
        for output, view in plan.copies:
            memory, offset = self._place(view)
            memory.read_into(_bytes(results[output]), offset)
        for output, tensor in zip(plan.returned, self._returned or (), strict=True):
            host = runtime.host_copy(tensor)
            np.copyto(results[output], runtime.as_numpy(host, results[output].dtype))

    def run_at(self, arrays: list[np.ndarray], symbols: tuple[int, ...]) -> None:
        raise AssertionError("a model with symbols is a DynamicCUDAProgram")

    def trace(self, arrays: list[np.ndarray], symbols: tuple[int, ...]) -> tuple[Slice, ...]:
        """Launched one by one, not as a graph: between kernels the GPU waits for the host."""
        with self._turns.on_host():
            self._run(arrays)
            return self._own.submit(self._timed).result()

    def _timed(self) -> tuple[Slice, ...]:
        cuda_api.activate()
        with self._stream.used():
            start = self._stream.mark()
            calls = calls_between(self._executable, self._main, self._stream.mark)
            self._stream.synchronize()
        return tuple(Slice((name,), begin.seconds_since(start), end.seconds_since(start)) for name, begin, end in calls)

    def feed(self, inputs: Sequence[np.ndarray]) -> None:
        """Copy the inputs, contiguous arrays, into the GPU's buffers, where they stay until the next `feed`."""
        cuda_api.activate()
        for array, memory in zip(inputs, self._given, strict=True):
            memory.write(_bytes(array))

    def _launch(self, stream: cuda_api.Stream | None = None) -> None:
        cuda_api.activate()
        if self._graph is not None:
            self._graph.launch(stream or self._stream)
            return
        self._own.submit(self._run_kernels, stream or self._stream).result()

    def _run_kernels(self, stream: cuda_api.Stream) -> None:
        cuda_api.activate()
        with stream.used():
            self._returned = self._main()

    def _captured(self) -> cuda_api.Graph | None:
        cuda_api.activate()
        with self._stream.used():
            self._main()  # loads the code, which a capture must not
        self._stream.synchronize()
        if self._manifest.memory.returned:
            return None
        try:
            return self._stream.capture(self._main)
        except Exception as e:  # kernels that take memory while they run, for one
            logger.info("%s runs kernel by kernel, it cannot be captured: %s", self._manifest.name, e)
            return None

    def _tensor(self, view: View) -> Any:
        memory, offset = self._place(view)
        nbytes = TensorSpec("", view.shape, view.dtype).nbytes
        return cuda_api.tensor_at(memory.address + offset, view.shape, view.dtype, nbytes)

    def __str__(self) -> str:
        return "a CUDA graph" if self.is_captured else "kernels"


def load_program(folder: Path, manifest: Manifest) -> CUDAProgram | DynamicCUDAProgram:
    """The program of an artifact for a GPU; its library's content and versions have been checked.

    Raises:
        ArtifactError: there is no GPU here that runs it.
    """
    try:
        device = CUDA(manifest.target)
    except TargetError as e:
        raise ArtifactError(f"{folder} is for a GPU that is not known here: {e}") from e
    if obstacle := device.obstacle():
        raise ArtifactError(f"{folder} was compiled for CUDA ({manifest.device}), and {obstacle}")
    if all(entry.name != BINARIES_NAME for entry in manifest.files):
        raise ArtifactError(f"{folder} is incomplete: it has no {BINARIES_NAME}; compile the model again")
    weights = np.fromfile(folder / WEIGHTS_NAME, np.uint8)
    with provided(read_binaries(folder / BINARIES_NAME)):
        library = runtime.load_library(folder / LIBRARY_NAME)
        if manifest.memory.takes_addresses:
            return DynamicCUDAProgram(manifest, library, weights, partial(_traced, folder, manifest))
        return CUDAProgram(manifest, runtime.virtual_machine(library, on_cuda=True), weights)


def _traced(folder: Path, manifest: Manifest) -> Traced:
    with provided(read_binaries(folder / BINARIES_NAME)):
        return load_traced(folder, manifest)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
