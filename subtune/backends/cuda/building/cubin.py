"""What a kernel takes of a multiprocessor, read from its machine code: no launch, no GPU, no tool of NVIDIA's."""

from __future__ import annotations

import struct
from dataclasses import dataclass

# Attributes of the sections .nv.info, as `cuobjdump --dump-elf` names them.
_REGCOUNT, _FRAME_SIZE = 0x2F, 0x11
_FORMAT_SIZED = 0x04
_SHT_SYMTAB, _SHT_NOBITS = 2, 8


@dataclass(frozen=True, slots=True)
class Resources:
    """`stack_bytes` per thread: what spills is there, and local arrays that are indexed at run time."""

    kernel: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    """Static; what is asked for at launch is not in the code."""


def resources(code: bytes) -> tuple[Resources, ...]:
    """Of every kernel in the cubin `code`; none where it is not a cubin of 64 bits."""
    if code[:5] != b"\x7fELF\x02":
        return ()
    sections = _sections(code)
    names = _symbols(code, sections)
    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    for name, _, offset, size, _ in sections:
        if name != ".nv.info":
            continue
        for attribute, symbol, value in _attributes(code[offset : offset + size]):
            table = {_REGCOUNT: registers, _FRAME_SIZE: frames}.get(attribute)
            if table is not None and symbol < len(names):
                table[names[symbol]] = value
    shared = {
        name.removeprefix(".nv.shared."): size
        for name, _, _, size, _ in sections
        if name.startswith(".nv.shared.") and not name.startswith(".nv.shared.reserved")
    }
    return tuple(
        Resources(kernel, count, frames.get(kernel, 0), shared.get(kernel, 0)) for kernel, count in registers.items()
    )


_Section = tuple[str, int, int, int, int]
"""Name, type, offset, size, and the section it links to."""


def _sections(code: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", code, 0x28)
    size, count, strings = struct.unpack_from("<HHH", code, 0x3A)
    raw = []
    for i in range(count):
        name, kind, _, _, offset, nbytes, link = struct.unpack_from("<IIQQQQI", code, start + i * size)
        raw.append((name, kind, offset, nbytes, link))
    base = raw[strings][2]
    return [(_text(code, base + name), kind, offset, nbytes, link) for name, kind, offset, nbytes, link in raw]


def _symbols(code: bytes, sections: list[_Section]) -> list[str]:
    for _, kind, offset, size, link in sections:
        if kind == _SHT_SYMTAB:
            base = sections[link][2]
            starts = [struct.unpack_from("<I", code, offset + at)[0] for at in range(0, size, 24)]
            return [_text(code, base + start) for start in starts]
    return []


def _attributes(data: bytes) -> list[tuple[int, int, int]]:
    """(attribute, symbol, value) of those that hold these two numbers."""
    found, at = [], 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != _FORMAT_SIZED:
            continue
        if size == 8:
            symbol, value = struct.unpack_from("<II", data, at)
            found.append((attribute, symbol, value))
        at += size
    return found


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode(errors="replace")
