"""A compiled kernel as a library that the runner loads.

Linking with `ld` takes 3 ms, through the C compiler's driver 12 ms. Where neither is installed the optimised
LLVM module is written as text and the runner's just-in-time compiler finishes it: nothing but TVM is needed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import lru_cache
from typing import Any

from subtune.backends.host.link import link_command
from subtune.runtime import triples

_REASON_CHARS = 500


def write_library(module: Any, stem: str, triple: str = "") -> str:
    """Write `module` to `stem` + an extension; the path.

    Args:
        triple: of the machine that loads it; "": this one, by whatever is installed here.

    Raises:
        ArtifactError: nothing links for another machine here.
    """
    command = () if triple and not triples.is_here(triple) else linker()
    if triple:
        command = command or link_command(triple)
    if not command:
        module.write_to_file(f"{stem}.ll", "ll")
        return f"{stem}.ll"
    module.write_to_file(f"{stem}.o", "o")
    done = subprocess.run([*command, "-o", f"{stem}.so", f"{stem}.o"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} cannot link: {done.stderr.strip()[-_REASON_CHARS:]}")
    return f"{stem}.so"


@lru_cache
def linker() -> tuple[str, ...]:
    """The command that links an object into a shared library; empty when the machine has none."""
    # Symbols of libc and libm are found in the process at load time, so a bare `ld` is enough on Linux.
    names = ("ld", "ld.lld", "cc") if sys.platform == "linux" else ("cc",)
    for name in names:
        if found := shutil.which(name):
            return (found, "-shared") if sys.platform == "linux" else (found, "-shared", "-undefined", "dynamic_lookup")
    return ()
