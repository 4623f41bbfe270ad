"""What the operating system says of this machine: cores that may be used, which of them are fast, their caches,
and what instructions the processor knows."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from subtune.runtime import triples

ARCH_PRCTL, ASK_FOR_STATE, TILE_DATA = 158, 0x1023, 18
"""Linux on x86-64: the number of the call by which a process asks for AMX's registers, the question, their number."""

_SYSFS_DEVICES = Path("/sys/devices")

_CACHE_FIELDS = ("level", "type", "size", "coherency_line_size")
"""Files of one of a core's caches."""
_MOST_CACHES = 8
_FAST_CAPACITY = 0.6
"""Of the fastest core's capacity: the middle cores of phones are above, the small ones at a third."""

_MOST_L3_OF_A_CORE = 16 << 20
"""Where cores share L3, each has less than that. A virtual machine of two of sixty cores is told of all 300 MB, whose
other owners use them: measured on a Xeon, weights of 60 MB and more come from memory at every run."""


def usable_cores() -> int:
    """Cores this process may run on: affinity and the container's quota, not what the machine has."""
    return len(_allowed()[: _quota()])


def fast_cores() -> list[int]:
    """Numbers of the usable cores of the fastest kind, no more than the quota.

    A parallel loop is cut into equal parts: one slow core among fast ones keeps all of them waiting.
    """
    return _fastest(_allowed())[: _quota()]


def _allowed() -> list[int]:
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return sorted(affinity)


def _quota() -> int | None:
    """Whole cores that the container may use, at least one; None if it is not limited."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, int(quota) // int(period)) if quota != "max" else None
    except (OSError, ValueError):
        return None


def _fastest(cores: list[int]) -> list[int]:
    """Those of `cores` that are of the fast kind where the processor has two; all where the system does not tell."""
    try:  # Intel's hybrids name them: "0-11" or "0,2,4-7"
        listed = (_SYSFS_DEVICES / "cpu_core" / "cpus").read_text().strip()
        spans = [span.partition("-") for span in listed.split(",")]
        chosen = {core for low, _, high in spans for core in range(int(low), int(high or low) + 1)}
        if fast := [core for core in cores if core in chosen]:
            return fast
    except (OSError, ValueError):
        pass
    try:
        paths = {core: _SYSFS_DEVICES / "system" / "cpu" / f"cpu{core}" / "cpu_capacity" for core in cores}
        capacity = {core: int(path.read_text()) for core, path in paths.items()}
    except (OSError, ValueError):
        return cores
    return [core for core in cores if capacity[core] >= _FAST_CAPACITY * max(capacity.values())]


def caches() -> dict[str, Any]:
    """The data caches of one of the fast cores from sysfs, in bytes, by the fields of `CPUModel`; what it tells."""
    folder = _SYSFS_DEVICES / "system" / "cpu" / f"cpu{fast_cores()[0]}" / "cache"
    return caches_by(lambda path: (folder / path).read_text(), os.cpu_count() or 1)


def caches_by(read: Callable[[str], str], cores: int) -> dict[str, Any]:
    """As `caches`, of a machine with so many cores.

    Args:
        read: the text of a file below sysfs's folder of a core's caches, as `index0/level`; raises OSError where there
            is none.
    """
    found: dict[str, int] = {}
    for index in range(_MOST_CACHES):
        try:
            level, kind, size, line = (read(f"index{index}/{field}").strip() for field in _CACHE_FIELDS)
        except OSError:
            continue
        if kind == "Instruction" or level not in "123" or not size[:-1].isdigit():
            continue
        scale = {"K": 1024, "M": 1024**2}.get(size[-1], 1)
        found["l1d_bytes" if level == "1" else f"l{level}_bytes"] = int(size[:-1]) * scale
        if line.isdigit():
            found["line_bytes"] = int(line)
    if "l2_bytes" in found:
        found.setdefault("l3_bytes", found["l2_bytes"])  # small boards have no third level
        found["l3_bytes"] = max(found["l2_bytes"], min(found["l3_bytes"], _MOST_L3_OF_A_CORE * cores))
    return found


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Instruction-set extensions of this machine under LLVM's spelling without punctuation; empty if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    # An emulator may show the file of the machine below it, whose flags say nothing of the processor it makes.
    wanted = "flags" if triples.architecture(platform.machine()) == "x86_64" else "features"
    flags: set[str] = set()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() == wanted:
            flags.update(value.split())
            break
    arm = {"asimd": "neon", "asimddp": "dotprod", "asimdhp": "fullfp16", "fp": "fparmv8"}
    return frozenset("".join(c for c in arm.get(flag, flag) if c.isalnum()) for flag in flags)


def missing_features(features: tuple[str, ...]) -> tuple[str, ...]:
    """Those of LLVM's `features` that this machine's processor lacks; none where it cannot be asked."""
    flags = cpu_flags()
    if not flags:
        return ()
    lacking = [f for f in features if "".join(c for c in f if c.isalnum()) not in flags]
    tiles = [f for f in features if f.startswith("amx-") and f not in lacking]
    return tuple(lacking) if not tiles or has_tile_registers() else (*lacking, *tiles)


def present_features(features: Iterable[str]) -> frozenset[str]:
    """Those of LLVM's `features` that this machine's processor has; none where it cannot be asked."""
    asked = tuple(features)
    return frozenset(asked) - set(missing_features(asked)) if cpu_flags() else frozenset()


@functools.cache
def has_tile_registers() -> bool:
    """Whether Linux lets this process use AMX: it asks, as each process has to once, and old kernels know no such call.

    Refused also where a thread's alternative signal stack is too small for what a signal then saves.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    ask = ctypes.CDLL(None, use_errno=True).syscall
    return bool(ask(ctypes.c_long(ARCH_PRCTL), ctypes.c_long(ASK_FOR_STATE), ctypes.c_long(TILE_DATA)) == 0)
