"""Where the threads of a pool sit: the workers on cores of their own, and the caller never on one of those.

Left to itself, Linux now and then keeps a caller and a worker on one core for half a second, both spinning: the
model takes twice as long meanwhile, and a candidate that is timed then loses. TVM's own binding does not know where
the caller sits. Linux only; elsewhere, and with SUBTUNE_PIN_THREADS=0, nothing is done.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_TASKS = Path("/proc/self/task")
_starting = threading.Lock()
_local = threading.local()
_LOOK_S = 1e-3


def start_pool(start: Callable[[], object]) -> None:
    """Call `start`, which starts the calling thread's pool, and place the workers that it started."""
    if not _is_supported():
        start()
        return
    with _starting:  # two pools that start side by side would take each other's workers for their own
        before = _threads()
        start()
        _place(sorted(_threads() - before))


def step_aside() -> None:
    """Move the calling thread to a core that none of its workers is bound to, if it sits on one that is.

    Looked at once in a millisecond: Linux moves threads about as often, and a small operator takes less than looking.
    """
    now = time.perf_counter()
    if now < getattr(_local, "looks_again", 0.0):
        return
    _local.looks_again = now + _LOOK_S
    taken: frozenset[int] = getattr(_local, "taken", frozenset())
    if taken and _current_core() in taken:
        allowed = os.sched_getaffinity(0)
        if free := allowed - taken:
            os.sched_setaffinity(0, free)
            os.sched_setaffinity(0, allowed)  # it stays where it was put, until someone needs that core


def bind_caller() -> None:
    """Keep the calling thread off its workers' cores for good; for processes that are all ours."""
    taken: frozenset[int] = getattr(_local, "taken", frozenset())
    if taken and (free := os.sched_getaffinity(0) - taken):
        os.sched_setaffinity(0, free)


def _place(workers: list[int]) -> None:
    """Bind each worker to one core when the pool is as wide as the machine, or else all to all but the caller's.

    A narrower pool leaves the choice to Linux: another process may be bound to the core that we would take.
    """
    cores = worker_cores(os.sched_getaffinity(0), _current_core(), _siblings)
    if not workers or not cores:
        return
    is_full = len(workers) >= len(cores)
    try:
        for i, worker in enumerate(workers):
            os.sched_setaffinity(worker, {cores[i % len(cores)]} if is_full else cores)
    except OSError:
        return  # a worker that is gone, or a sandbox that forbids it: unbound is slower, not wrong
    _local.taken = frozenset(cores[: len(workers)]) if is_full else frozenset()


def worker_cores(allowed: set[int], caller: int, siblings: Callable[[int], frozenset[int]]) -> list[int]:
    """One hardware thread of every core but the caller's, in their order; of a single core, its other threads.

    >>> worker_cores({0, 1, 2, 3}, 2, lambda cpu: frozenset({cpu, cpu ^ 1}))
    [0]
    >>> worker_cores({0, 1}, 0, lambda cpu: frozenset({0, 1}))
    [1]
    """
    used = set(siblings(caller)) | {caller}
    cores = []
    for cpu in sorted(allowed):
        if cpu not in used:
            cores.append(cpu)
            used |= siblings(cpu) | {cpu}
    return cores or sorted(allowed - {caller})


@functools.cache
def _is_supported() -> bool:
    if os.environ.get("SUBTUNE_PIN_THREADS") == "0" or os.environ.get("TVM_BIND_THREADS", "0") != "0":
        return False
    return sys.platform == "linux" and _TASKS.is_dir() and hasattr(os, "sched_setaffinity")


def _threads() -> set[int]:
    return {int(task.name) for task in _TASKS.iterdir()}


def _current_core() -> int:
    return int(_libc().sched_getcpu())


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _siblings(cpu: int) -> frozenset[int]:
    """The hardware threads of the core that `cpu` belongs to."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        text = path.read_text().strip()
    except OSError:
        return frozenset({cpu})
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
