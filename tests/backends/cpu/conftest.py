"""How to run a kernel for AArch64 on another machine."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

_CODES = {"i": 0, "u": 1, "f": 2}  # of DLPack


@pytest.fixture(scope="session")
def on_aarch64(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes, Sequence[np.ndarray]], np.ndarray]:
    """Run a kernel's object file in an emulator: the last array's new value. Each run is a program of its own."""
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    if not emulator or not compiler:
        pytest.skip("needs qemu-aarch64 (package qemu-user) and aarch64-linux-gnu-gcc (gcc-aarch64-linux-gnu)")
    folder = tmp_path_factory.mktemp("aarch64")
    main = folder / "main.o"
    source = Path(__file__).with_name("kernel_main.c")
    subprocess.run([compiler, "-O1", "-c", str(source), "-o", str(main)], check=True)

    def run(kernel: bytes, arrays: Sequence[np.ndarray]) -> np.ndarray:
        (folder / "kernel.o").write_bytes(kernel)
        program = folder / "kernel"
        objects = [str(main), str(folder / "kernel.o")]
        subprocess.run([compiler, "-static", *objects, "-o", str(program), "-lm"], check=True)
        header = struct.pack("<i", len(arrays))
        for a in arrays:
            header += struct.pack(f"<3i{a.ndim}q", _CODES[a.dtype.kind], a.itemsize * 8, a.ndim, *a.shape)
        given = header + b"".join(array.tobytes() for array in arrays)
        done = subprocess.run([str(emulator), str(program)], input=given, capture_output=True, check=True)
        last = arrays[-1]
        return np.frombuffer(done.stdout, dtype=last.dtype).reshape(last.shape)

    return run
