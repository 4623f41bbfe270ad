"""A model's library in bounded time, whatever LLVM makes of a kernel: one that takes too long is not optimised."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm.tirx import PrimFunc

from subtune.backends.cpu.lowering.parts import parts
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.backends.host.export import export, object_files
from subtune.backends.host.limited import Unfinished, limited, side_by_side
from subtune.backends.host.link import link_shared
from subtune.core.errors import ArtifactError
from subtune.runtime.host import usable_cores

_log = logging.getLogger(__name__)

BASE_S, EACH_S = 60.0, 2.0
"""Limit of a whole library, and what it has more for each kernel; a kernel takes 0.3 s."""
KERNEL_S = 20.0
"""Limit of one kernel, when a library has exceeded its own."""


def write_in_time(
    compiled: Callable[[tvm.IRModule], Any], mod: tvm.IRModule, target: tvm.target.Target, library: Path
) -> None:
    """Write what `compiled` makes of `mod` to `library`. Where that takes too long or crashes the compiler, the kernels
    that do so alone are compiled without optimisation.

    Raises:
        ArtifactError: that takes too long, too; or the library cannot be linked.
    """
    kernels = {gvar.name_hint: func for gvar, func in mod.functions_items() if isinstance(func, PrimFunc)}
    limit_s = BASE_S + EACH_S * len(kernels)
    with tempfile.TemporaryDirectory(prefix="library.", dir=library.parent) as folder:
        made = Path(folder) / library.name
        write = partial(_write, compiled, made, str(target.attrs["mtriple"]), limit_s)
        try:
            write(mod)
        except Unfinished as e:
            reason = str(e)
            slow = _slow(kernels, target) or set(kernels) - {"main"}
            _log.warning("the library was not compiled: %s; not optimised now: %s", reason, ", ".join(sorted(slow)))
            try:
                write(_unoptimised(mod, slow, target))
            except Unfinished as again:
                raise ArtifactError(
                    f"the model does not compile: {reason}; and without optimising {len(slow)} kernels {again}"
                ) from e
        os.replace(made, library)


def _write(
    compiled: Callable[[tvm.IRModule], Any], library: Path, triple: str, limit_s: float, mod: tvm.IRModule
) -> None:
    """Kernels of a straight line side by side; a program of Relax as a whole."""
    modules = parts(mod, usable_cores())
    if len(modules) == 1:
        limited(lambda: export(compiled(mod), library, triple), limit_s)
        return
    with object_files(library.parent, [f"part{i}.o" for i in range(len(modules))]) as folder:
        files = [str(folder / f"part{i}.o") for i in range(len(modules))]

        def write(part: tvm.IRModule, file: str) -> None:
            compiled(part).mod.write_to_file(file, "o")

        side_by_side([partial(write, part, file) for part, file in zip(modules, files, strict=True)], limit_s)
        link_shared(str(library), files, triple)


def _slow(kernels: dict[str, PrimFunc], target: tvm.target.Target) -> set[str]:
    """Those that exceed the limit of one kernel, or crash the compiler, alone."""
    found = set()
    for name, func in kernels.items():
        alone = tvm.IRModule({name: func.with_attr("global_symbol", name)})
        try:
            limited(partial(_compile, alone, target), KERNEL_S)
        except Unfinished:
            found.add(name)
        except Exception as e:  # `main` alone lacks what it calls
            _log.debug("%s alone: %s: %s", name, type(e).__name__, e)
    return found


def _compile(mod: tvm.IRModule, target: tvm.target.Target) -> None:
    tvm.compile(mod, target, tir_pipeline=PIPELINE)


def _unoptimised(mod: tvm.IRModule, names: Collection[str], target: tvm.target.Target) -> tvm.IRModule:
    """`mod` with those kernels for the same processor, at LLVM's level 0."""
    slow = tvm.target.Target({**dict(target.export()), "opt-level": 0})
    made = mod.clone()
    for name in names:
        made.update_func(mod.get_global_var(name), mod[name].with_attr("target", slow))
    return made
