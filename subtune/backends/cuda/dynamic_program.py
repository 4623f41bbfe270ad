"""A compiled model of many shapes on a GPU: memory for the largest, and a CUDA graph for each shape that comes again.

Its `main` is machine code of the host. It launches the kernels that an instance wants, and allocates nothing: what it
launches can be captured, and a shape's graph stays valid as long as the program.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from subtune.backends.cuda import api as cuda_api
from subtune.backends.cuda.buffers import Buffers
from subtune.backends.cuda.turns import Turns
from subtune.backends.host.traced import Traced
from subtune.core.manifest import Manifest
from subtune.core.trace import Slice

logger = logging.getLogger(__name__)

Tensors = Sequence[tuple[int, int]]
"""Address and bytes of each."""

_GRAPHS = 32
"""Shapes whose launches are kept as graphs; one takes some hundred kilobytes, and a millisecond to make."""


class DynamicCUDAProgram(Buffers):
    """As `subtune.core.program.Program`, of a model with symbols.

    Args:
        library: its function `main` takes addresses and the symbols' values (`lowering.straight_line`).
        traced: loads the library for traces, which takes one more number (`host.twin.stepwise`).
    """

    def __init__(self, manifest: Manifest, library: Any, weights: np.ndarray, traced: Callable[[], Traced]) -> None:
        self._traced = traced
        greatest, plan = manifest.domain.greatest, manifest.memory
        self._manifest = manifest
        self._library = library
        self._stream = cuda_api.Stream()
        self._turns = Turns()
        self._weights = cuda_api.Memory(weights.nbytes)
        self._weights.write(weights)
        self._arena = cuda_api.Memory(plan.arena_nbytes)
        self._given = tuple(cuda_api.Memory(spec.at(greatest).nbytes) for spec in manifest.inputs)
        self._taken = tuple(cuda_api.Memory(spec.at(greatest).nbytes) for spec in manifest.outputs)
        for memory in (*self._given, self._arena):
            memory.fill(0)
        arrays = (memory.address for memory in (*self._given, *self._taken))
        self._addresses = (self._weights.address, self._arena.address, *arrays)
        self._main = library["main"]
        self._graphs: OrderedDict[tuple[int, ...], cuda_api.Graph | None] = OrderedDict()
        self._can_capture = True

    def run(self, arrays: list[np.ndarray]) -> None:
        raise AssertionError("the shapes of a model with symbols come with every run")

    def run_at(self, arrays: list[np.ndarray], symbols: tuple[int, ...]) -> None:
        with self._turns.on_host():
            self._run_at(arrays, symbols)

    def run_on(self, stream: int, given: Tensors, taken: Tensors, symbols: tuple[int, ...] = ()) -> None:
        """As `CUDAProgram.run_on`, at one instance."""
        cuda_api.activate()
        queue = cuda_api.Stream(stream)
        with self._turns.on(queue):
            for (address, nbytes), memory in zip(given, self._given, strict=True):
                queue.copy(memory.address, address, nbytes)
            self._launch(symbols, queue)
            for (address, nbytes), memory in zip(taken, self._taken, strict=True):
                queue.copy(address, memory.address, nbytes)
            for output, view in self._manifest.memory.copies:
                memory, offset = self._place(view)
                address, nbytes = taken[output]
                queue.copy(address, memory.address + offset, nbytes)

    def _run_at(self, arrays: list[np.ndarray], symbols: tuple[int, ...]) -> None:
        self.feed(arrays[: len(self._given)])
        self.replay(symbols)
        self._take(arrays)

    def trace(self, arrays: list[np.ndarray], symbols: tuple[int, ...]) -> tuple[Slice, ...]:
        """Of the second of two runs: the first loads the kernels' code. Launched one by one, as by `CUDAProgram`."""
        traced = self._traced()
        with self._turns.on_host():
            self.feed(arrays[: len(self._given)])
            with self._stream.used():
                for _ in range(2):
                    start, marks = self._stream.mark(), []
                    for index in range(len(traced.steps)):
                        begin = self._stream.mark()
                        traced.call(*self._addresses, *symbols, index)
                        marks.append((begin, self._stream.mark()))
                    self._stream.synchronize()
            self._take(arrays)
        times = [(begin.seconds_since(start), end.seconds_since(start)) for begin, end in marks]
        return tuple(Slice(names, *pair) for names, pair in zip(traced.steps, times, strict=True))

    def _take(self, arrays: list[np.ndarray]) -> None:
        """Copy the outputs from the GPU."""
        results = arrays[len(self._given) :]
        for array, memory in zip(results, self._taken, strict=True):
            memory.read_into(_bytes(array))
        for output, view in self._manifest.memory.copies:
            memory, offset = self._place(view)
            memory.read_into(_bytes(results[output]), offset)

    def feed(self, inputs: Sequence[np.ndarray]) -> None:
        """Copy the inputs, contiguous arrays, into the GPU's buffers, where they stay until the next `feed`."""
        cuda_api.activate()
        for array, memory in zip(inputs, self._given, strict=True):
            memory.write(_bytes(array))

    def replay(self, symbols: tuple[int, ...]) -> None:
        """One run on what the GPU's input buffers hold, at one instance; returns when it is done."""
        self._launch(symbols)
        self._stream.synchronize()

    def device_seconds(self, symbols: tuple[int, ...], runs: int = 20) -> float:
        """Mean time of one of `runs` runs in a row at one instance, without copies from and to the host."""
        cuda_api.activate()
        begin, end = cuda_api.Event(), cuda_api.Event()
        for _ in range(2):  # the second makes a graph
            self._launch(symbols)
        graph = self._graphs[symbols]
        launch = partial(graph.launch, self._stream) if graph is not None else partial(self._launch, symbols)
        begin.record(self._stream)
        for _ in range(runs):  # of short kernels, what the host does between launches would be the time
            launch()
        end.record(self._stream)
        return end.seconds_since(begin) / runs

    def _launch(self, symbols: tuple[int, ...], stream: cuda_api.Stream | None = None) -> None:
        """Kernel by kernel the first time, which loads their code; from the second time on as a graph."""
        cuda_api.activate()
        graph = self._graphs.get(symbols)
        if graph is not None:
            self._graphs.move_to_end(symbols)
        else:
            graph = self._captured(symbols) if symbols in self._graphs and self._can_capture else None
            self._keep(symbols, graph)
        if graph is None:
            self._launch_kernels(symbols, stream or self._stream)
        else:
            graph.launch(stream or self._stream)

    def _launch_kernels(self, symbols: tuple[int, ...], stream: cuda_api.Stream) -> None:
        with stream.used():
            self._main(*self._addresses, *symbols)

    def _captured(self, symbols: tuple[int, ...]) -> cuda_api.Graph | None:
        try:
            return self._stream.capture(lambda: self._main(*self._addresses, *symbols))
        except Exception as e:
            logger.info("%s runs kernel by kernel, it cannot be captured: %s", self._manifest.name, e)
            self._can_capture = False
            return None

    def _keep(self, symbols: tuple[int, ...], graph: cuda_api.Graph | None) -> None:
        """The graphs of the shapes that were used last are kept."""
        self._graphs[symbols] = graph
        self._graphs.move_to_end(symbols)
        if len(self._graphs) > _GRAPHS:
            _, oldest = self._graphs.popitem(last=False)
            if oldest is not None:
                self._turns.settle()  # it may be running
                self._stream.synchronize()

    def __str__(self) -> str:
        return "a CUDA graph for every shape"


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
