"""How a tuple of passes is run: checked after each, dumped if somebody wants to look, and the one at fault named."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import relax

from subtune.core.errors import SubtuneError

logger = logging.getLogger(__name__)

Pass = Callable[[tvm.IRModule], tvm.IRModule]
Look = Callable[[str, tvm.IRModule], None]
"""What is called with the name of each pass and the module that it made."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Passes with one purpose, in order."""

    name: str
    passes: tuple[Pass, ...]


class Dump:
    """Writes modules into a directory as `NN-<pass>.py`, numbered over all phases; constants are left out."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def __call__(self, name: str, mod: tvm.IRModule) -> None:
        """Raises SubtuneError where the directory cannot be written."""
        self._count += 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{self._count:02d}-{name}.py").write_text(mod.script(show_meta=False), encoding="utf-8")
        except OSError as e:
            raise SubtuneError(f"cannot write {self._folder}: {e.strerror or e}; name another directory") from e


class PassError(SubtuneError):
    """A pass of subtune's own failed, or made a module that is not well-formed."""


def run_passes(mod: tvm.IRModule, phases: Sequence[Phase], dump: Look | None = None) -> tvm.IRModule:
    """Run the phases in order, checking that the module stays well-formed.

    Scopes and variables are checked after every pass that changed something. Types are checked on the result (one
    check costs as much as three passes); when that fails, the modules in between are checked to find the pass.

    Args:
        dump: called with each pass's name and its result.

    Raises:
        PassError: names the pass and those that ran before it.
    """
    done: list[tuple[str, tvm.IRModule]] = []
    for phase in phases:
        for one in phase.passes:
            name = f"{phase.name}/{pass_name(one)}"
            start = time.perf_counter()
            try:
                new = one(mod)
                if not new.same_as(mod):
                    relax.analysis.well_formed(new, check_ty=False)
            except Exception as e:
                raise _failure(name, [before for before, _ in done], e) from e
            mod = new
            logger.debug("%s: %.3f s", name, time.perf_counter() - start)
            done.append((name, mod))
            if dump is not None:
                dump(pass_name(one), mod)
    if done and not relax.analysis.check_well_formed(mod):
        _blame(done)
    return mod


def _blame(done: Sequence[tuple[str, tvm.IRModule]]) -> None:
    """Raise for the first pass whose result has wrong types."""
    for i, (name, mod) in enumerate(done):
        try:
            relax.analysis.well_formed(mod)
        except Exception as e:
            raise _failure(name, [before for before, _ in done[:i]], e) from e


def _failure(name: str, before: Sequence[str], e: Exception) -> PassError:
    return PassError(f"pass {name} failed, after {', '.join(before) or 'no other pass'}: {_first_line(e)}")


def pass_name(one: Pass) -> str:
    one = getattr(one, "func", one)  # of a partial
    info = getattr(one, "info", None)
    return str(info.name) if info is not None else str(getattr(one, "__name__", type(one).__name__))


def _first_line(e: Exception) -> str:
    text = str(e).strip()
    return text.splitlines()[0] if text else type(e).__name__
