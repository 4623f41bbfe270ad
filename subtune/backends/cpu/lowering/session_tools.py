"""What is loaded as a session with another machine begins: first what keeps its server, then what the session is for.

TVM's server takes no further session once the process of one has ended with an error, and a connection that breaks off
is one. What has to be loaded before that does no harm is a library of its own, and the smaller the better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.ring import BEGIN, beginning, write
from subtune.core.scratch import temporary
from subtune.runtime.remote import SPREAD_THREADS, loaded


@dataclass(frozen=True, slots=True)
class SessionTools:
    """Two libraries, and the second one's functions."""

    first: bytes
    second: bytes
    names: tuple[str, ...]

    def begin(self, session: Any, threads: int) -> dict[str, Any]:
        """The functions by their names. Before anything runs: the threads are those of the process that goes on."""
        loaded(session, bytearray(self.first), "begin.so")[BEGIN]()
        library = loaded(session, bytearray(self.second), "tools.so")
        session.get_function("runtime.config_threadpool")(SPREAD_THREADS, threads)
        return {name: library[name] for name in self.names}


def session_tools(mod: tvm.IRModule, names: Sequence[str], device: CPUModel) -> SessionTools:
    """Of a module's functions of those names, for the machine of `device`."""
    with temporary() as folder:
        return SessionTools(_built(beginning(), device, folder / "1"), _built(mod, device, folder / "2"), tuple(names))


def _built(mod: tvm.IRModule, device: CPUModel, path: Path) -> bytes:
    write(mod, device, path.with_suffix(".so"))
    return path.with_suffix(".so").read_bytes()
