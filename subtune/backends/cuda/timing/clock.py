"""How long a kernel takes on a GPU: many calls captured in one graph, the graph timed by events.

Inside a graph a kernel costs what it costs in a model that ships. Called one by one from the host, short kernels would
wait for the host. Where kernels start early (`lowering.dependent_launch`), a small one stands in front of each call, as
in a model: behind itself a kernel would copy its weights while the call before computes, and would seem faster than it
is. On an H200, of two products in 2.6 us behind themselves one took 3.3 and the other 4.1 in their model.
"""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from subtune.backends.cuda import api as cuda_api
from subtune.backends.cuda.timing.source import binary

logger = logging.getLogger(__name__)

_GRAPH_S = 400e-6
_MAX_CALLS = 256
_LOOKS = 15
_LEAST_SHARE = 1 / 8
"""Of what a call and the kernel in front of it take, for the call: noise makes no time negative."""
_SMALL_BLOCK = 128


class TimedCalls:
    """`calls`, the same kernel on different copies of its arguments, to be timed in turns.

    Args:
        flush: fill this memory before every call, so that nothing is in L2; each call is then timed by itself.
        front: stands in front of each call in a graph; its own time does not count.
    """

    def __init__(
        self,
        stream: cuda_api.Stream,
        calls: Sequence[Callable[[], object]],
        flush: cuda_api.Memory | None = None,
        front: Small | None = None,
    ) -> None:
        self._stream, self._calls, self._flush, self._front = stream, calls, flush, front
        self._begin, self._end = cuda_api.Event(), cuda_api.Event()
        self._graph: cuda_api.Graph | None = None
        self._per_graph = 1
        # Memory that a kernel takes while it runs is its thread's, and TVM frees it when that thread needs more: what
        # is in a graph must stay where it is.
        self._own = ThreadPoolExecutor(1)
        self._own.submit(self._prepare).result()

    def seconds(self, calls: int) -> float:
        """Seconds per call, over about so many."""
        if self._flush is not None:
            return min(self._own.submit(self._after_flush, i).result() for i in range(max(1, min(calls, 8))))
        if self._graph is None:
            return self._own.submit(self._one_by_one, max(1, calls)).result()
        launches = max(1, round(calls / self._per_graph))
        self._begin.record(self._stream)
        for _ in range(launches):
            self._graph.launch(self._stream)
        self._end.record(self._stream)
        both_s = self._end.seconds_since(self._begin) / (launches * self._per_graph)
        return both_s if self._front is None else max(both_s - self._front.seconds, _LEAST_SHARE * both_s)

    def _prepare(self) -> None:
        cuda_api.activate()
        with self._stream.used():
            for call in self._calls:
                call()  # loads the code and touches every copy
        self._stream.synchronize()
        if self._flush is None:
            self._capture(self._one_by_one(2 * len(self._calls)))

    def _capture(self, call_s: float) -> None:
        count = min(_MAX_CALLS, max(1, math.ceil(_GRAPH_S / max(call_s, 1e-6))))
        count = len(self._calls) * -(-count // len(self._calls))

        def all_of_them() -> None:
            for i in range(count):
                if self._front is not None:
                    self._front()
                self._calls[i % len(self._calls)]()

        try:
            self._graph = self._stream.capture(all_of_them)
        except Exception as e:  # it takes memory while it runs
            logger.info("timed call by call, as it cannot be captured: %s", e)
            cuda_api.synchronize()  # raises where the context is lost
            return
        self._per_graph = count
        self._graph.launch(self._stream)
        self._stream.synchronize()

    def _one_by_one(self, calls: int) -> float:
        self._begin.record(self._stream)
        with self._stream.used():
            for i in range(calls):
                self._calls[i % len(self._calls)]()
        self._end.record(self._stream)
        return self._end.seconds_since(self._begin) / calls

    def _after_flush(self, index: int) -> float:
        assert self._flush is not None
        self._stream.fill(self._flush, index)
        self._begin.record(self._stream)
        with self._stream.used():
            self._calls[index % len(self._calls)]()
        self._end.record(self._stream)
        return self._end.seconds_since(self._begin)


class Small:
    """A small kernel that starts early, and lets the next one start as soon as those before it have ended.

    Attributes:
        seconds: of one of many in a row.
    """

    def __init__(self, arch: str, stream: cuda_api.Stream) -> None:
        self._kernel, self._stream = binary(arch).kernel("small"), stream
        self._out = cuda_api.Memory(4 * _SMALL_BLOCK)
        self._out.fill(0)
        self()  # loads the code, which a capture must not
        stream.synchronize()

        def many() -> None:
            for _ in range(_MAX_CALLS):
                self()

        graph = stream.capture(many)
        begin, end = cuda_api.Event(), cuda_api.Event()
        looks = []
        for _ in range(_LOOKS):
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            looks.append(end.seconds_since(begin) / _MAX_CALLS)
        self.seconds = median(looks)

    def __call__(self) -> None:
        self._kernel(self._stream, 4, _SMALL_BLOCK, ctypes.c_uint64(self._out.address), is_early=True)


class Spin:
    """About 50 microseconds of multiply-adds on every SM: longer only when others use the GPU or its clock is down."""

    def __init__(self, arch: str, sms: int, stream: cuda_api.Stream) -> None:
        self._kernel = binary(arch).kernel("spin")
        self._out = cuda_api.Memory(4)
        self._blocks, self._stream = 2 * sms, stream
        self._begin, self._end = cuda_api.Event(), cuda_api.Event()

    def seconds(self) -> float:
        self._begin.record(self._stream)
        out = ctypes.c_uint64(self._out.address)
        self._kernel(self._stream, self._blocks, 512, out, ctypes.c_int(500))
        self._end.record(self._stream)
        return self._end.seconds_since(self._begin)
