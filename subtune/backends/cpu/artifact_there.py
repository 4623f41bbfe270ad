"""An artifact's files on another machine, and runs of it there, through TVM's RPC: nothing of subtune is installed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from subtune import runtime
from subtune.backends.cpu.device import CPU
from subtune.backends.cpu.lowering import files_there as tool
from subtune.backends.cpu.lowering.ring import PUT, TAKE
from subtune.backends.cpu.lowering.session_tools import session_tools
from subtune.core.errors import ArtifactError, SubtuneError
from subtune.core.manifest import LIBRARY_NAME, WEIGHTS_NAME, FileEntry, Manifest
from subtune.core.memory_plan import Base
from subtune.core.tensor_spec import TensorSpec
from subtune.runtime.remote import SESSION_S, Remote, answers, close, connected, is_expired

_POINTER_BYTES = 8
_PATH_BYTES = 4096
"""Linux's longest path."""
_SLOWEST_BYTES_PER_S = 1_000_000
"""Of a network that is waited for."""
_TIMED_S, _MOST_RUNS = 1.0, 100
"""How long, and how often at most, a model is run to be timed."""


@dataclass(frozen=True, slots=True)
class RunThere:
    """Outputs by name, and seconds of a run: the median of several behind the first."""

    outputs: dict[str, np.ndarray]
    seconds: float


@contextmanager
def session_at(remote: Remote, triple: str, threads: int, nbytes: int = 0) -> Iterator[ArtifactThere]:
    """A session with the device; whoever else wants one waits.

    Args:
        nbytes: of what may have to be sent.

    Raises (also what is done within):
        SubtuneError: it cannot be reached, the connection was lost, or it has taken too long.
    """
    tools = session_tools(tool.tools(), tool.TOOLS, CPU({"mtriple": triple}))
    try:
        session_s = SESSION_S + nbytes // _SLOWEST_BYTES_PER_S
        session = connected(remote, session_s)
    except ConnectionError as e:
        raise SubtuneError(str(e)) from e
    try:
        yield ArtifactThere(session, tools.begin(session, threads))
    except SubtuneError:
        raise
    except Exception as e:
        if is_expired(e):
            raise SubtuneError(f"{remote} has ended the session: it took more than {session_s} s") from e
        said = (str(e).strip().splitlines() or [type(e).__name__])[-1]
        how = "fails" if answers(session) else "was lost, or what it was asked to do has ended its process"
        raise SubtuneError(f"{remote} {how}: {said}") from e
    finally:
        close(session)


class ArtifactThere:
    """What can be done in a session; paths are absolute."""

    def __init__(self, session: Any, tools: dict[str, Any]) -> None:
        self._session = session
        self._tools = tools

    def home(self) -> str:
        """The folder of the user who has started the server; "" where he has none."""
        found = self._empty(_PATH_BYTES)
        length = int(self._tools[tool.VARIABLE](self._text("HOME"), found))
        return bytes(found.numpy()[:length]).decode("utf-8", "surrogateescape") if length > 0 else ""

    def make(self, folder: str) -> None:
        """With those around it."""
        parts = folder.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            self._tools[tool.MAKE](self._text("/" + "/".join(parts[:count])))

    def send(self, file: Path, folder: str, entry: FileEntry) -> bool:
        """Put the file there and check what has arrived; False where it was there already.

        A model that runs there keeps what it has loaded: the new file takes the old one's name, not its place.

        Raises:
            ArtifactError: nothing can be written there, or what has arrived is something else.
        """
        path = f"{folder}/{entry.name}"
        if self._digest(path, entry.nbytes) == entry.sha256:
            return False
        arriving = f"{path}.arriving"
        try:
            self._session.upload(str(file), arriving)
        except Exception as e:
            if answers(self._session):
                raise ArtifactError(f"{path} cannot be written there: may the server write to it?") from e
            raise
        found = self._digest(arriving, entry.nbytes)
        if not found:
            raise ArtifactError(f"{path} cannot be written there: is there room?")
        if found != entry.sha256:
            raise ArtifactError(f"{path} has arrived damaged: its SHA-256 differs; send it again")
        if int(self._tools[tool.RENAME](self._text(arriving), self._text(path))):
            raise ArtifactError(f"{path} cannot be replaced there: something else has that name")
        return True

    def run(
        self,
        manifest: Manifest,
        folder: str,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[TensorSpec],
        symbols: Sequence[int],
    ) -> RunThere:
        """Of the artifact in `folder`, which `send` has put there.

        `main` takes addresses of objects whose first field is the address of their data: a table of such is enough.

        Args:
            outputs: their shapes are numbers.
            symbols: values of the manifest's domain, in its order.
        """
        main = self._session.load_module(f"{folder}/{LIBRARY_NAME}")
        weights = self._file(
            f"{folder}/{WEIGHTS_NAME}", sum(f.nbytes for f in manifest.files if f.name == WEIGHTS_NAME)
        )
        arena = self._empty(manifest.memory.arena_nbytes)
        self._tools[tool.CLEAR](arena)
        slack = dict(manifest.memory.slack)
        given = [self._sent(_bytes_of(array)) for array in inputs]
        made = [self._empty(spec.nbytes + slack.get(i, 0)) for i, spec in enumerate(outputs)]
        arrays = [weights, arena, *given, *made]
        table = self._sent(np.array([self._tools[tool.ADDRESS](array) for array in arrays], np.int64).view(np.uint8))
        first = int(self._tools[tool.ADDRESS](table))
        arguments = [0, *(first + _POINTER_BYTES * i for i in range(len(arrays))), *symbols]
        seconds = self._timed(main, arguments)
        bases = {Base.WEIGHT: weights, Base.ARENA: arena}
        for output, view in manifest.memory.copies:
            start = manifest.weights[view.place].offset if view.base is Base.WEIGHT else view.place
            owners = given if view.base is Base.INPUT else made
            source = bases[view.base] if view.base.is_fixed else owners[view.place]
            self._tools[TAKE](source, start if view.base.is_fixed else 0, made[output])
        found = {spec.name: _array(data.numpy(), spec) for spec, data in zip(outputs, made, strict=True)}
        return RunThere(found, seconds)

    def _timed(self, main: Any, arguments: Sequence[int]) -> float:
        """TVM's evaluator runs once before it looks at its clock."""
        device = self._session.cpu(0)
        once = float(main.time_evaluator("main", device, number=1, repeat=1)(*arguments).mean)
        runs = min(_MOST_RUNS, max(1, math.ceil(_TIMED_S / max(once, 1e-6))))
        return float(main.time_evaluator("main", device, number=1, repeat=runs)(*arguments).median)

    def _digest(self, path: str, nbytes: int) -> str:
        """SHA-256 of the file of that size; "" where there is none."""
        data = self._file(path, nbytes)
        if data is None:
            return ""
        padding = tool.padding_of(nbytes)
        self._tools[PUT](self._sent(np.frombuffer(padding, np.uint8)), data, nbytes)
        work = self._sent(tool.new_work())
        self._tools[tool.DIGEST](data, (nbytes + len(padding)) // tool.BLOCK_BYTES, work)
        return tool.digest_of(work.numpy())

    def _file(self, path: str, nbytes: int) -> Any:
        """Its bytes there, with room for a digest's padding behind; None where it does not have so many."""
        data = self._empty(nbytes + len(tool.padding_of(nbytes)))
        return data if int(self._tools[tool.READ](self._text(path), data)) == nbytes else None

    def _text(self, value: str) -> Any:
        return self._sent(np.frombuffer(value.encode("utf-8", "surrogateescape") + b"\0", np.uint8))

    def _sent(self, array: np.ndarray) -> Any:
        import tvm

        return tvm.runtime.tensor(array, self._session.cpu(0))

    def _empty(self, nbytes: int) -> Any:
        import tvm

        return tvm.runtime.empty((max(nbytes, 1),), "uint8", self._session.cpu(0))


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """At least one: TVM sends no empty arrays."""
    return np.frombuffer(np.ascontiguousarray(runtime.carried(array)).tobytes() or b"\0", np.uint8)


def _array(data: np.ndarray, spec: TensorSpec) -> np.ndarray:
    return data[: spec.nbytes].view(runtime.numpy_dtype(spec.dtype)).reshape(spec.sizes)
