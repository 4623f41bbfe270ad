"""A CUDA module's machine code beside its library: built without a GPU, handed over as a file, never compiled again.

TVM makes a module that holds machine code only where there is a GPU; anywhere else it keeps the source, which whoever
loads it would have to compile. So the source is replaced by a token before TVM keeps it, the code is compiled by us,
and whoever loads the library gives TVM the code when it asks for the compilation of the token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import tvm_ffi

from subtune.core.errors import ArtifactError

CALLBACK = "tvm_callback_cuda_compile"
_TOKEN = "// subtune: machine code "
_KEY_CHARS = 64


def token(key: str) -> str:
    """What stands for the source of the code with SHA-256 `key`."""
    return _TOKEN + key


def write_binaries(path: Path, binaries: Mapping[str, bytes]) -> None:
    """All of `binaries`, by key, into one file."""
    with path.open("wb") as f:
        for key, code in sorted(binaries.items()):
            f.write(key.encode() + len(code).to_bytes(8, "little") + code)


def read_binaries(path: Path) -> dict[str, bytes]:
    data = path.read_bytes()
    found, at = {}, 0
    while at < len(data):
        begin = at + _KEY_CHARS + 8
        size = int.from_bytes(data[at + _KEY_CHARS : begin], "little")
        found[data[at : at + _KEY_CHARS].decode()] = data[begin : begin + size]
        at = begin + size
    return found


@contextmanager
def provided(binaries: Mapping[str, bytes]) -> Iterator[None]:
    """Inside, TVM gets the code of a module that is loaded from `binaries`."""

    def compiled(source: str) -> bytes:
        key = str(source).removeprefix(_TOKEN)
        if key not in binaries:
            raise ArtifactError("a library's machine code for the GPU is missing: compile the model again")
        return binaries[key]

    before = tvm_ffi.get_global_func(CALLBACK, allow_missing=True)
    tvm_ffi.register_global_func(CALLBACK, compiled, override=True)
    try:
        yield
    finally:
        # TVM's compiler registers its own when it is imported, and refuses to if there is one
        if before is None:
            tvm_ffi.registry.remove_global_func(CALLBACK)
        else:
            tvm_ffi.register_global_func(CALLBACK, before, override=True)
