"""What is published of NVIDIA's GPUs: limits per compute capability, and figures of named devices. Data.

Nothing of this was measured by us. Limits: NVIDIA, CUDA C++ Programming Guide, "Technical specifications per compute
capability". Devices: the data sheets and architecture white papers named beside them. The bandwidth of L2 is published
by nobody: nominal figures near what micro-benchmark papers report (Jia et al. 2018 and 2019 for V100 and T4; Luo et al.
2024 for A100, H100 and RTX 4090), which `subtune device --calibrate` replaces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_K, _M = 1024, 1024 * 1024

Rates = tuple[tuple[str, int], ...]
"""(dtype, operations per cycle of one SM), two for a multiply-add; dense operands, sums in float32 or int32."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one compute capability; bytes and counts per multiprocessor unless said."""

    max_threads: int
    max_blocks: int
    shared_bytes: int
    shared_per_block_bytes: int
    """A block may ask for so much where it opts in."""
    fma_per_cycle: int
    mma: Rates


@dataclass(frozen=True, slots=True)
class Published:
    """One device. `arch` as nvcc names it; `cycles_per_s` the boost clock that the published rates are given for."""

    name: str
    arch: str
    sms: int
    l2_bytes: int
    cycles_per_s: float
    dram_bytes_per_s: float
    l2_bytes_per_s: float
    source: str
    mma: Rates = ()
    """Where it differs from its capability's: GeForce cards run half of it when they sum in float32."""


_VOLTA: Rates = (("float16", 1024),)
_TURING: Rates = (("float16", 1024), ("int8", 2048))
_AMPERE: Rates = (("float16", 2048), ("bfloat16", 2048), ("int8", 4096), ("tfloat32", 1024))
_AMPERE_SMALL: Rates = (("float16", 1024), ("bfloat16", 1024), ("int8", 2048), ("tfloat32", 512))
_ADA: Rates = (*_AMPERE_SMALL, ("float8", 2048))
_HOPPER: Rates = (("float16", 4096), ("bfloat16", 4096), ("int8", 8192), ("tfloat32", 2048), ("float8", 8192))
_BLACKWELL: Rates = (("float16", 8192), ("bfloat16", 8192), ("int8", 16384), ("tfloat32", 4096), ("float8", 16384))
_GEFORCE_30: Rates = (("float16", 512), ("bfloat16", 512), ("int8", 2048), ("tfloat32", 256))
_GEFORCE_40: Rates = (*_GEFORCE_30, ("float8", 1024))

LIMITS: dict[int, Limits] = {
    60: Limits(2048, 32, 64 * _K, 48 * _K, 64, ()),
    61: Limits(2048, 32, 96 * _K, 48 * _K, 128, ()),
    62: Limits(2048, 32, 64 * _K, 48 * _K, 128, ()),
    70: Limits(2048, 32, 96 * _K, 96 * _K, 64, _VOLTA),
    72: Limits(2048, 32, 96 * _K, 96 * _K, 64, _TURING),
    75: Limits(1024, 16, 64 * _K, 64 * _K, 64, _TURING),
    80: Limits(2048, 32, 164 * _K, 163 * _K, 64, _AMPERE),
    86: Limits(1536, 16, 100 * _K, 99 * _K, 128, _AMPERE_SMALL),
    87: Limits(1536, 16, 164 * _K, 163 * _K, 128, _AMPERE_SMALL),
    89: Limits(1536, 24, 100 * _K, 99 * _K, 128, _ADA),
    90: Limits(2048, 32, 228 * _K, 227 * _K, 128, _HOPPER),
    100: Limits(2048, 32, 228 * _K, 227 * _K, 128, _BLACKWELL),
    120: Limits(1536, 24, 100 * _K, 99 * _K, 128, _ADA),
}
"""What is not listed has the limits of the greatest capability below it."""

DEVICES: tuple[Published, ...] = (
    Published("V100", "sm_70", 80, 6 * _M, 1.53e9, 900e9, 2.2e12, "Tesla V100 white paper WP-08608"),
    Published("T4", "sm_75", 40, 4 * _M, 1.59e9, 320e9, 1.27e12, "T4 data sheet; Turing white paper WP-09183"),
    Published("A100", "sm_80", 108, 40 * _M, 1.41e9, 1555e9, 4.4e12, "A100 white paper (SXM4, 40 GB)"),
    Published(
        "RTX 3090", "sm_86", 82, 6 * _M, 1.695e9, 936e9, 2.4e12, "Ampere GA102 white paper", _GEFORCE_30,
    ),
    Published(
        "RTX 4090", "sm_89", 128, 72 * _M, 2.52e9, 1008e9, 4.6e12, "Ada architecture white paper", _GEFORCE_40,
    ),
    Published(
        "RTX 5090", "sm_120", 170, 96 * _M, 2.407e9, 1792e9, 6e12, "RTX Blackwell architecture white paper",
        _GEFORCE_40,
    ),
    Published("L4", "sm_89", 58, 48 * _M, 2.04e9, 300e9, 1.7e12, "L4 data sheet"),
    Published("L40S", "sm_89", 142, 96 * _M, 2.52e9, 864e9, 4.6e12, "L40S data sheet"),
    Published("H100", "sm_90a", 132, 50 * _M, 1.83e9, 3352e9, 5.6e12, "H100 white paper and data sheet (SXM5, 80 GB)"),
    Published("H200", "sm_90a", 132, 50 * _M, 1.83e9, 4800e9, 5.6e12, "H200 data sheet (SXM)"),
    Published("B200", "sm_100a", 148, 126 * _M, 1.85e9, 7700e9, 9e12, "HGX B200 data sheet"),
)  # fmt: skip

_REPRESENTATIVE = {60: "V100", 70: "V100", 75: "T4", 80: "A100", 86: "RTX 3090", 89: "RTX 4090", 90: "H100",
                   100: "B200", 120: "RTX 5090"}  # fmt: skip


def limits_of(capability: int) -> Limits:
    """The limits of compute capability `capability`, e.g. 90; at least 60."""
    return LIMITS[max(known for known in LIMITS if known <= capability)]


def named(text: str) -> Published | None:
    """The device that `text` names, in NVIDIA's or in TVM's spelling.

    >>> named("nvidia/geforce-rtx-4090").name, named("NVIDIA A100-SXM4-80GB").name, named("magic")
    ('RTX 4090', 'A100', None)
    """
    words = re.split(r"[\s/_-]+", text.upper())
    joined = "".join(word for word in words if word not in ("NVIDIA", "GEFORCE", "TESLA"))
    for device in sorted(DEVICES, key=lambda d: -len(d.name)):
        wanted = device.name.replace(" ", "")
        if joined == wanted or re.match(rf"{wanted}(\d+GB|SXM|PCIE|HBM|NVL|GRAPHICS|$)", joined):
            return device
        if joined.removeprefix("RTX") == wanted.removeprefix("RTX"):
            return device
    return None


def representative(capability: int) -> Published:
    """A device of that capability, or of the greatest below it that has one, for targets that name none."""
    name = _REPRESENTATIVE[max(known for known in _REPRESENTATIVE if known <= capability)]
    return next(device for device in DEVICES if device.name == name)
