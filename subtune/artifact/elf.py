"""Whether a shared library is all there: what its headers promise lies within the file.

The dynamic linker maps what the headers say. Where the file ends early, reading there kills the process (SIGBUS).
Format: System V ABI, "Object Files" and "Program Loading"; 64 bits, little-endian, as every machine that we build for.
"""

from __future__ import annotations

import struct
from pathlib import Path

from subtune.core.errors import ArtifactError

_IDENT = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SHARED, _LOADED, _NO_BITS = 3, 1, 8


def check_library(path: Path) -> None:
    """Raise ArtifactError if `path` is an ELF file that ends early; other systems' libraries are not looked at."""
    data = path.read_bytes()
    if data[:4] == _IDENT[:4] and (wrong := _wrong(data)):
        raise ArtifactError(f"{path} is damaged: {wrong}; compile the model again")


def _wrong(data: bytes) -> str:
    if len(data) < _HEADER.size or data[:6] != _IDENT:
        return "it is no 64-bit little-endian library"
    (_, kind, _, _, _, segments_at, sections_at, _, _, segment_size, segments, section_size, sections, _) = (
        _HEADER.unpack_from(data)
    )
    if kind != _SHARED or not segments:
        return "it is no shared library"
    if segment_size != _SEGMENT.size or (sections and section_size != _SECTION.size):
        return "its headers have another size"
    if max(segments_at + segments * segment_size, sections_at + sections * section_size) > len(data):
        return f"its headers lie beyond its {len(data)} bytes"
    for i in range(segments):
        kind, _, offset, _, _, nbytes, memory_nbytes, _ = _SEGMENT.unpack_from(data, segments_at + i * segment_size)
        if kind == _LOADED and (offset + nbytes > len(data) or nbytes > memory_nbytes):
            return f"its segment {i} ends at byte {offset + nbytes} of {len(data)}"
    for i in range(sections):
        _, kind, _, _, offset, nbytes, *_ = _SECTION.unpack_from(data, sections_at + i * section_size)
        if kind != _NO_BITS and offset + nbytes > len(data):
            return f"its section {i} ends at byte {offset + nbytes} of {len(data)}"
    return ""
