"""The normalise phase, as one visible tuple of passes, and how a tuple of passes is run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import relax

from subtune.core.errors import SubtuneError
from subtune.passes.fold_batch_norm import fold_scales
from subtune.passes.fold_constants import fold_constants
from subtune.passes.layout_nhwc import channels_to_last, settle_permutes
from subtune.passes.normalize_activations import recognise_activations
from subtune.passes.normalize_cleanup import clean_up
from subtune.passes.normalize_matmul import flatten_matmuls
from subtune.passes.normalize_nary import unstack_nary
from subtune.passes.normalize_norms import recognise_norms
from subtune.passes.normalize_siblings import join_siblings

logger = logging.getLogger(__name__)

Pass = Callable[[tvm.IRModule], tvm.IRModule]


@dataclass(frozen=True, slots=True)
class Phase:
    """Passes with one purpose, in order."""

    name: str
    passes: tuple[Pass, ...]


NORMALIZE: tuple[Phase, ...] = (
    Phase("clean", (fold_constants, clean_up, unstack_nary)),
    Phase("recognise", (recognise_activations, recognise_norms)),
    Phase("fold", (fold_scales,)),
    Phase("layout", (channels_to_last, settle_permutes)),
    Phase("matmul", (flatten_matmuls, join_siblings)),
    Phase("finish", (relax.transform.DeadCodeElimination(),)),
)


class PassError(SubtuneError):
    """A pass of subtune's own failed, or made a module that is not well-formed."""


def normalize(mod: tvm.IRModule) -> tvm.IRModule:
    """The imported module in the form the partition expects.

    One operator per idea (no decomposed norms and activations), constants folded, BatchNorm in the weights,
    convolutions channels last, matmuls with constant [K, N] weights, no operator that does nothing. The function
    `main` keeps its parameters and results: their order, shapes and types.
    """
    return run_passes(mod, NORMALIZE)


def run_passes(mod: tvm.IRModule, phases: Sequence[Phase], dump: Path | None = None) -> tvm.IRModule:
    """Run the phases in order, checking that the module stays well-formed.

    Scopes and variables are checked after every pass that changed something. Types are checked on the result (one
    check costs as much as three passes); when that fails, the modules in between are checked to find the pass.

    Args:
        dump: a directory that gets the module after each pass as `NN-<pass>.py` (constants left out).

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
                dump.mkdir(parents=True, exist_ok=True)
                (dump / f"{len(done):02d}-{pass_name(one)}.py").write_text(mod.script(show_meta=False))
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
    info = getattr(one, "info", None)
    return str(info.name) if info is not None else str(getattr(one, "__name__", type(one).__name__))


def _first_line(e: Exception) -> str:
    text = str(e).strip()
    return text.splitlines()[0] if text else type(e).__name__
