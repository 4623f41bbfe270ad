"""Kernels that run on another machine, behind TVM's RPC; their arguments are checked here.

A call that is checked sends its arguments with their guard zones and brings all back. What is timed stays there: one
message starts many calls (`lowering.ring`).
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.pack_there import WIDTHS, numbers_of, padded_shape
from subtune.backends.cpu.lowering.ring import COMPARE, FAILED, NEAR, PACK, PUT, RING, SPREAD, TOOLS, tools
from subtune.backends.cpu.lowering.session_tools import session_tools
from subtune.core.kernel import ConstantTransform, Packing
from subtune.core.measurement import Comparison, Timing
from subtune.measure.clock import time_calls, time_pairs
from subtune.measure.copies import forget
from subtune.measure.guarded import GUARD_BYTES, Guarded, as_bytes
from subtune.measure.messages import Library
from subtune.runtime.remote import (
    SESSION_S,
    Connection,
    LostInCall,
    Remote,
    SessionExpired,
    is_expired,
    loaded,
)

_Found = TypeVar("_Found")

_ALIGN = 128
"""Of copies of an argument: TVM's arrays begin at such addresses."""
_LARGE_BYTES = 1 << 16
"""Of an input: a message takes as long as 64 KB on a fast network."""
_KEPT_BYTES = 1 << 28
"""Of arguments that stay there, for kernels that take the same."""
_LIBRARIES = 64
"""That stay loaded there."""
_HANGS_S = 60
"""A kernel that runs for longer is ended there."""


@cache
def there(remote: Remote, device: CPUModel) -> There:
    """One connection for all workloads of this process."""
    return There(remote, device)


@dataclass(frozen=True, slots=True, eq=False)
class _Kernel:
    path: str


@dataclass(slots=True, eq=False)
class _Caller:
    """Rotates through copies of its arguments: `first` is where the next call begins."""

    kernel: _Kernel
    arguments: Sequence[Guarded]
    copies: int
    first: int = 0


class There:
    """See `Place`.

    Raises (all but `load`):
        ConnectionError: the connection was lost, or there is none. The next call connects again.
    """

    def __init__(self, remote: Remote, device: CPUModel) -> None:
        self._connection = Connection(remote, self._begin, self._forget)
        self._threads = device.threads
        self._tools = session_tools(tools(), TOOLS, device)
        self._numbers = count()
        self._rings: OrderedDict[str, Any] = OrderedDict()
        self._tool: dict[str, Any] = {}
        self._offsets: dict[bytes, Any] = {}
        self._constants: OrderedDict[tuple[int, tuple[int, ...]], tuple[np.ndarray, tuple[Any]]] = OrderedDict()
        self._results: OrderedDict[tuple[int, ...], tuple[Guarded, tuple[Any, Any]]] = OrderedDict()
        self._kept: OrderedDict[tuple[int, int], tuple[Guarded, tuple[Any, ...]]] = OrderedDict()
        """Copies of arguments, by the argument and how many there are; 0: one, and one to compare it with."""

    def begin_workload(self) -> None:
        """Nothing: whether the other machine is disturbed is not asked."""

    def load(self, library: Library) -> _Kernel:
        return _Kernel(library.path)

    def run(self, kernel: _Kernel, inputs: Sequence[Guarded], outputs: Sequence[Guarded]) -> float:
        """Small arguments travel as one array, there and back: each message takes as long as a kernel."""
        small = [one for one in (*inputs, *outputs) if one.whole.size < _LARGE_BYTES]
        starts = dict(zip(map(id, small), accumulate(map(_stride, small), initial=0), strict=False))

        def ran() -> float:
            packed = np.zeros(sum(map(_stride, small)) or 1, np.uint8)
            for one in small:
                packed[starts[id(one)] :][: one.whole.size] = one.whole
            together = self._sent(packed)
            given = {id(one): self._given(one) for one in inputs if id(one) not in starts}
            results = {id(one): self._result(i, one) for i, one in enumerate(outputs) if id(one) not in starts}
            arrays = [given[id(one)][0] if id(one) in given else together for one in inputs]
            arrays += [results[id(one)][0] if id(one) in results else together for one in outputs]
            rows = [[GUARD_BYTES + starts.get(id(one), 0) for one in (*inputs, *outputs)]]
            seconds = self._seconds(kernel, 0, 1, 1, self._sent_offsets(rows), arrays)
            packed = together.numpy()
            for one in small:
                one.whole[:] = packed[starts[id(one)] :][: one.whole.size]
            for one in inputs:
                if id(one) in given:
                    self._bring(one, *given[id(one)])
            for one in outputs:
                if id(one) in results:
                    self._bring_result(one, *results[id(one)])
            return seconds

        return self._connected(ran)

    def _given(self, one: Guarded) -> tuple[Any, Any]:
        """A large input with its zones, which stays there, and what it is compared with afterwards."""
        key = (id(one), 0)
        if key not in self._kept:
            array = self._placed(one)
            self._keep(key, one, (array, self._copies(array, _stride(one), 1)))
        self._kept.move_to_end(key)
        array, before = self._kept[key][1]
        return array, before

    def _bring(self, one: Guarded, array: Any, before: Any) -> None:
        """What a kernel has made of an input: megabytes are brought only where they are not what they were."""
        if int(self._tool[COMPARE](array, before, 0, 0)):
            del self._kept[id(one), 0]
            one.whole[:] = array.numpy()[: one.whole.size]

    def _result(self, number: int, one: Guarded) -> tuple[Any, Any]:
        """A large output as it is before a call, and once more, to compare it with: they stay there."""
        key = (number, one.bytes.size, one.slack.size, -1 if one.filled is None else one.filled)
        if key not in self._results:
            before = self._placed(one)
            self._results[key] = (one, (self._empty(_stride(one)), before))
            forget(self._results, _bytes_of, _KEPT_BYTES)
        self._results.move_to_end(key)
        array, before = self._results[key][1]
        self._tool[SPREAD](before, array, 1)
        return array, before

    def _bring_result(self, one: Guarded, array: Any, before: Any) -> None:
        """Nothing where it holds what it is to hold, and its zones are whole: TVM brings 50 MB a second."""
        if one.right is not None:
            right, limit = one.right
            there = self._constant(right, right.shape, right)
            is_right = int(self._tool[NEAR](array, GUARD_BYTES, there, limit)) == right.size
            one.is_near = is_right and not int(
                self._tool[COMPARE](array, before, GUARD_BYTES, GUARD_BYTES + one.bytes.size)
            )
        if not one.is_near:
            one.whole[:] = array.numpy()[: one.whole.size]

    def caller(self, kernel: _Kernel, arguments_of: Callable[[int], Sequence[Guarded]], copies: int, _: bool) -> Any:
        return _Caller(kernel, arguments_of(0), copies)

    def time(self, caller: Any, seconds: float, stop_above_s: float) -> Timing:
        return self._connected(lambda: time_calls(caller, seconds, stop_above_s, self._sample))

    def compare(self, one: Any, other: Any, seconds: float) -> Comparison:
        return self._connected(lambda: Comparison(*time_pairs(one, other, seconds, self._sample)))

    def _sample(self, caller: _Caller, calls: int) -> float:
        arrays = [self._spread(caller, one) for one in caller.arguments]
        rows = [[copy * _stride(one) for one in caller.arguments] for copy in range(caller.copies)]
        offsets = self._sent_offsets([[GUARD_BYTES + start for start in row] for row in rows])
        taken = self._seconds(caller.kernel, caller.first, calls, caller.copies, offsets, arrays)
        caller.first = (caller.first + calls) % caller.copies
        return taken / calls

    def _seconds(
        self, kernel: _Kernel, first: int, calls: int, copies: int, offsets: Any, arrays: Sequence[Any]
    ) -> float:
        ring = self._ring(kernel.path)
        begin = time.monotonic()
        try:
            taken = float(ring(first, calls, copies, _HANGS_S, offsets, *arrays))
        except Exception as e:
            if is_expired(e) or self._connection.is_alive():
                raise
            self._connection.drop()
            if time.monotonic() - begin >= _HANGS_S:
                raise SessionExpired(f"it ran for more than {_HANGS_S} s") from e
            raise LostInCall(f"the connection to {self._connection.remote} was lost while it ran: {e}") from e
        if taken == FAILED:
            raise RuntimeError("the kernel says that it failed")
        return taken * 1e-9

    # -- what is there

    def _connected(self, work: Callable[[], _Found]) -> _Found:
        try:
            return work()
        except (ConnectionError, SessionExpired):
            raise
        except Exception as e:
            if is_expired(e):
                self._connection.drop()
                raise SessionExpired(f"it ran for more than {SESSION_S} s") from e
            if self._connection.is_alive():
                raise
            self._connection.drop()
            raise ConnectionError(f"the connection to {self._connection.remote} was lost: {e}") from e

    def _begin(self, session: Any) -> None:
        self._tool = self._tools.begin(session, self._threads)

    def _forget(self) -> None:
        self._rings.clear()
        self._tool.clear()
        self._constants.clear()
        self._offsets.clear()
        self._results.clear()
        self._kept.clear()

    @property
    def _device(self) -> Any:
        return self._connection.session().cpu(0)

    def _ring(self, path: str) -> Any:
        session = self._connection.session()
        if path not in self._rings:
            # of two with one name the system would give the first
            module = loaded(session, path, f"{next(self._numbers)}-{Path(path).name}")
            self._rings[path] = module[RING]
            if len(self._rings) > _LIBRARIES:
                self._rings.popitem(last=False)
        self._rings.move_to_end(path)
        return self._rings[path]

    def _sent(self, array: np.ndarray) -> Any:
        import tvm

        return tvm.runtime.tensor(array, self._device)

    def _empty(self, nbytes: int) -> Any:
        import tvm

        return tvm.runtime.empty((nbytes,), "uint8", self._device)

    def _sent_offsets(self, rows: Sequence[Sequence[int]]) -> Any:
        numbers = np.array(rows, np.int64).reshape(-1)
        key = numbers.tobytes()
        if key not in self._offsets:
            self._offsets[key] = self._sent(numbers)
        return self._offsets[key]

    def _spread(self, caller: _Caller, one: Guarded) -> Any:
        """The argument with its zones, one copy behind the other."""
        key = (id(one), caller.copies)
        if key not in self._kept:
            self._keep(key, one, (self._copies(self._placed(one), _stride(one), caller.copies),))
        self._kept.move_to_end(key)
        (spread,) = self._kept[key][1]
        return spread

    def _placed(self, one: Guarded) -> Any:
        """An argument with its zones. What a large one consists of is sent once: TVM sends 50 MB a second."""
        if one.whole.size < _LARGE_BYTES or (one.origin is None and one.filled is None):
            return self._sent_whole(one)
        made = self._empty(_stride(one))
        if one.origin is None:
            page = self._sent(np.full(GUARD_BYTES, one.filled, np.uint8))
            self._tool[SPREAD](page, made, _stride(one) // GUARD_BYTES)  # what is left is of the zone behind
        elif not self._fill(made, one.bytes.size, *one.origin):
            return self._sent_whole(one)
        for start, zone in _zones(one):
            self._tool[PUT](self._sent(zone), made, start)
        return made

    def _sent_whole(self, one: Guarded) -> Any:
        padded = np.zeros(_stride(one), np.uint8)
        padded[: one.whole.size] = one.whole
        return self._sent(padded)

    def _fill(self, made: Any, nbytes: int, block: np.ndarray, form: ConstantTransform | None) -> bool:
        """With repetitions of the block, or with the block in its layout; False for a form that is not known there."""
        if form is None:
            for start in range(0, nbytes, block.nbytes):
                left = (nbytes - start) // block.itemsize
                part = block if left >= block.size else block.reshape(-1)[:left]
                self._tool[PUT](self._constant(block, part.shape, part), made, GUARD_BYTES + start)
            return True
        if not isinstance(form, Packing) or block.itemsize not in WIDTHS:
            return False
        numbers = numbers_of(form)
        if numbers is None:
            return False
        source = self._constant(block, padded_shape(form), block)
        self._tool[f"{PACK}{block.itemsize}"](source, made, GUARD_BYTES, self._sent(numbers))
        return True

    def _constant(self, owner: np.ndarray, shape: tuple[int, ...], array: np.ndarray) -> Any:
        """`array`, which is `owner` or a part of it, with zeros behind it in every dim, up to `shape`: several layouts
        pad alike."""
        key = (id(owner), shape)
        if key not in self._constants:
            padded = np.pad(array, [(0, size - dim) for dim, size in zip(array.shape, shape, strict=True)])
            self._constants[key] = (owner, (self._sent(as_bytes(padded)),))
            forget(self._constants, _bytes_of, _KEPT_BYTES)
        self._constants.move_to_end(key)
        (sent,) = self._constants[key][1]
        return sent

    def _copies(self, source: Any, nbytes: int, copies: int) -> Any:
        """Made there: nothing is sent."""
        array = self._empty(nbytes * copies)
        self._tool[SPREAD](source, array, copies)
        return array

    def _keep(self, key: tuple[int, int], one: Guarded, arrays: tuple[Any, ...]) -> None:
        """`one` itself, too, as its address is the key."""
        self._kept[key] = (one, arrays)
        forget(self._kept, _bytes_of, _KEPT_BYTES)


def _zones(one: Guarded) -> tuple[tuple[int, np.ndarray], ...]:
    """Where the zones before and behind it begin, and what they hold."""
    end = GUARD_BYTES + one.bytes.size
    return (0, one.whole[:GUARD_BYTES]), (end, one.whole[end:])


def _bytes_of(kept: tuple[Any, tuple[Any, ...]]) -> int:
    return sum(int(array.shape[0]) for array in kept[1])


def _stride(one: Guarded) -> int:
    return math.ceil(one.whole.size / _ALIGN) * _ALIGN
