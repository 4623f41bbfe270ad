"""What the CUDA driver says of the GPUs that are here: read through `libcuda`, without a context and without TVM."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

# CUdevice_attribute, cuda.h
_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "warp_size": 10,
    "clock_khz": 13,
    "sms": 16,
    "memory_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "max_threads_per_sm": 39,
    "major": 75,
    "minor": 76,
    "shared_per_sm_bytes": 81,
    "registers_per_sm": 82,
    "shared_per_block_bytes": 97,
    "max_blocks_per_sm": 106,
}


@dataclass(frozen=True, slots=True)
class DriverDevice:
    """A visible GPU. Sizes in bytes, clocks in kHz (0 where the driver does not tell)."""

    name: str
    total_bytes: int
    driver_version: int
    max_threads_per_block: int
    warp_size: int
    clock_khz: int
    sms: int
    memory_khz: int
    memory_bus_bits: int
    l2_bytes: int
    max_threads_per_sm: int
    major: int
    minor: int
    shared_per_sm_bytes: int
    registers_per_sm: int
    shared_per_block_bytes: int
    max_blocks_per_sm: int

    @property
    def capability(self) -> int:
        return 10 * self.major + self.minor


@cache
def driver_library() -> ctypes.CDLL | None:
    """The driver's library, where it is installed."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@cache
def driver_devices() -> tuple[DriverDevice, ...] | str:
    """The GPUs that the driver shows (`CUDA_VISIBLE_DEVICES` is obeyed), or why there is none, as a clause."""
    library = driver_library()
    if library is None:
        return "this machine has no CUDA driver"
    if code := library.cuInit(0):
        return f"the CUDA driver finds no usable GPU (cuInit returned {code})"
    count = ctypes.c_int()
    if library.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return "the CUDA driver shows no GPU"
    found = [_read(library, number) for number in range(count.value)]
    refused = [one for one in found if isinstance(one, str)]
    return refused[0] if refused else tuple(one for one in found if not isinstance(one, str))


def driver_device() -> DriverDevice | str:
    """The first GPU, or why there is none, as a clause."""
    found = driver_devices()
    return found if isinstance(found, str) else found[0]


def _read(library: ctypes.CDLL, number: int) -> DriverDevice | str:
    device, version = ctypes.c_int(), ctypes.c_int()
    if code := library.cuDeviceGet(ctypes.byref(device), number):
        return f"the CUDA driver refuses GPU {number} (cuDeviceGet returned {code})"
    library.cuDriverGetVersion(ctypes.byref(version))
    text = ctypes.create_string_buffer(256)
    library.cuDeviceGetName(text, 256, device)
    total = ctypes.c_size_t()
    library.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    values = {}
    for field, attribute in _ATTRIBUTES.items():
        value = ctypes.c_int()
        code = library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        values[field] = 0 if code else value.value
    return DriverDevice(text.value.decode(), total.value, version.value, **values)
