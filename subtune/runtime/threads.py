"""The thread pool of TVM's runtime: how many threads it runs, and that it does not survive a fork."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi

from subtune.runtime import affinity
from subtune.runtime.host import usable_cores
from subtune.runtime.library import load_runtime

_SHARE_CORES = -3  # AffinityMode::kSpecifyThreadShareAllCore

_fork_generation = 0
_forked_thread: int | None = None
"""The thread that came through a fork: its pool, if it had one, has lost its workers and would wait for ever."""


_configured = threading.local()
"""`threads` of the calling thread's pool, once it has one."""


def _count_fork() -> None:
    global _fork_generation, _forked_thread
    _fork_generation += 1
    _forked_thread = threading.get_ident()
    _configured.threads = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def fork_generation() -> int:
    """How many forks lie between this process and the first one: a thread pool does not survive a fork."""
    return _fork_generation


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    old = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def use_threads(threads: int) -> bool:
    """Make the calling thread's pool run `threads` threads; False if it has fewer, or may have lost them in a fork.

    TVM keeps one pool per calling thread. It is made with as many threads as it is told at its first use; later it can
    be told to use fewer, never more. Only a list of cores tells it: the mere number is forgotten, and on x86 every
    parallel region is then run by half of the machine's threads, or on a machine of two by one.
    `subtune.runtime.affinity` binds the workers: TVM's own binding leaves the calling thread free to sit on the core
    it bound a worker to, which halves the speed.
    """
    if getattr(_configured, "threads", 0) == threads:
        affinity.step_aside()
        return True
    if _forked_thread is not None and threading.get_ident() == _forked_thread:
        return False
    if threads > usable_cores():
        # TVM's workers yield 300000 times before they sleep, and finish that before they end: with more threads than
        # cores a process takes minutes to exit. They ask at some time after they have started, hence no restoring.
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    with _environment(TVM_BIND_THREADS=os.environ.get("TVM_BIND_THREADS", "0")):
        cores = [str(core) for core in range(threads)]
        affinity.start_pool(lambda: _pool_function("runtime.config_threadpool")(_SHARE_CORES, threads, cores))
    if _pool_function("runtime.NumThreads")() != threads:
        return False
    _configured.threads = threads
    return True


@functools.cache
def _pool_function(name: str) -> Any:
    load_runtime()
    return tvm_ffi.get_global_func(name)
