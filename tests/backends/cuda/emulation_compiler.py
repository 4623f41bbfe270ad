"""The emulation of `cuda_on_cpu.h`, compiled once in a process: its headers, and what runs kernels."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from subtune.backends.cuda.building.headers import headers_home

_COMPILE = ["-std=c++17", "-O1", "-w", "-fPIC"]
_HERE = Path(__file__).parent
_HEADERS = (_HERE / "hopper_on_cpu.h", "type_traits", "cuda_fp8.h", "sm_61_intrinsics.h")
"""The emulation, and what TVM's sources include: reading them takes longer than compiling a kernel."""


@cache
def toolkit() -> str:
    """The directory of CUDA's headers, "" without them or without a C++ compiler."""
    return f"{home}/include" if (home := headers_home()) and shutil.which("g++") else ""


def header() -> Path:
    """One that includes `_HEADERS`, compiled beside itself."""
    return _emulation()[0]


@cache
def _emulation() -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    """The header, in a directory that lasts as long as this process.

    What runs kernels is loaded then, and C++'s library with it: `gcc`, which links no kernel to that, is faster.
    """
    folder = tempfile.TemporaryDirectory(prefix="emulation.")
    path = Path(folder.name) / "emulation.h"
    path.write_text("".join(f'#if __has_include("{one}")\n#include "{one}"\n#endif\n' for one in _HEADERS))
    compile_cpp("g++", "-x", "c++-header", str(path), "-o", f"{path}.gch")
    library = path.with_suffix(".so")
    compile_cpp("g++", "-O2", "-shared", str(_HERE / "launches_on_cpu.cpp"), "-o", str(library))
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    return path, folder


def compile_cpp(compiler: str, *arguments: str) -> None:
    done = subprocess.run([compiler, *_COMPILE, f"-I{toolkit()}", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
