"""Target triples: which architecture and which system a library is for, and whether this machine is one of them."""

from __future__ import annotations

import platform
import sys

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_SYSTEMS = {"macos": "darwin", "macosx": "darwin", "ios": "darwin", "windows": "win32"}


def architecture(triple: str) -> str:
    """`x86_64`, `aarch64`, or whatever else the triple begins with."""
    first = triple.partition("-")[0].lower()
    return _ARCHITECTURES.get(first, first)


def system(triple: str) -> str:
    """The operating system under Python's name for it: `linux`, `darwin`, `win32`; "" if the triple names none.

    >>> system("aarch64-linux-gnu"), system("x86_64-conda-linux-gnu"), system("arm64-apple-macosx11.0")
    ('linux', 'linux', 'darwin')
    """
    for part in triple.lower().split("-")[1:]:
        name = part.rstrip("0123456789.")
        if name in ("linux", "darwin", *_SYSTEMS):
            return _SYSTEMS.get(name, name)
    return ""


def clock_of(triple: str) -> int | None:
    """The number of the clock that never goes back, for C's `clock_gettime`; None where that is not known.

    Only of machines of 64 bits: their `struct timespec` is two integers of 64 bits.

    >>> clock_of("x86_64-linux-gnu"), clock_of("arm64-apple-macosx11.0"), clock_of("armv7l-linux-gnueabihf")
    (1, 6, None)
    """
    is_wide = architecture(triple) in ("x86_64", "aarch64", "riscv64", "ppc64le", "s390x")
    return {"linux": 1, "darwin": 6}.get(system(triple)) if is_wide else None


def is_here(triple: str) -> bool:
    """Whether this process is of the triple's architecture and system; the processor's extensions aside."""
    is_system = system(triple) == sys.platform or "-" not in triple
    return is_system and architecture(triple) == architecture(platform.machine())


def llvm_triple_here() -> str:
    """A triple of this machine that LLVM and `is_here` understand, without asking LLVM."""
    known = {"linux": "linux-gnu", "darwin": "apple-macosx", "win32": "pc-windows-msvc"}
    return f"{architecture(platform.machine())}-{known.get(sys.platform, sys.platform)}"


def here() -> str:
    """This machine, for messages: `x86_64 linux`."""
    return f"{architecture(platform.machine())} {sys.platform}"
