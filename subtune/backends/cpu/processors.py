"""What is published of processors that are not here: caches, FMA units, clocks. Data; a device file overrides it.

Nothing of this was measured by us. Caches are per core, a last level that cores share is whole; where there is no
third level, L3 repeats L2. `fma_latency` is from accumulator to accumulator, shorter on Arm than from the factors.
"""

from __future__ import annotations

from dataclasses import dataclass

_K, _M = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Processor:
    """One kind of core in one common machine; fields as in `CPUModel`, `cores` the fast ones of that machine."""

    fma_per_cycle: int
    fma_latency: int
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    cycles_per_s: float
    dram_bytes_per_s: float
    source: str
    line_bytes: int = 64


_FIRESTORM = Processor(
    # L1 and L2 as Apple's sysctl reports them for the performance cores; the system level cache behind L2 is no larger.
    4, 4, 128 * _K, 12 * _M, 12 * _M, 4, 3.2e9, 60e9,
    "D. Johnson, Apple Microarchitecture Research (Firestorm); AnandTech 2020, Apple M1", 128,
)  # fmt: skip

PROCESSORS: dict[str, Processor] = {
    # Raspberry Pi 4. A quad FMLA takes both FP pipes: one a cycle; the accumulator is read 6 of 10 cycles late.
    "cortex-a72": Processor(
        1, 4, 32 * _K, 1 * _M, 1 * _M, 4, 1.5e9, 4e9,
        "Arm, Cortex-A72 Software Optimization Guide; LLVM's AArch64SchedA57; BCM2711 data sheet",
    ),
    # Raspberry Pi 5 (BCM2712): 512 KB of L2 each, 2 MB of L3 together.
    "cortex-a76": Processor(
        2, 2, 64 * _K, 512 * _K, 2 * _M, 4, 2.4e9, 12e9,
        "Arm, Cortex-A76 Software Optimization Guide (FMLA: latency 4, accumulate 2, two a cycle); BCM2712",
    ),
    # AWS Graviton2, Ampere Altra: 64 to 80 cores; a small cloud machine has a few, which share all of L3.
    "neoverse-n1": Processor(
        2, 2, 64 * _K, 1 * _M, 32 * _M, 4, 2.5e9, 40e9,
        "Arm, Neoverse N1 Software Optimization Guide; AWS Graviton2",
    ),
    "neoverse-n2": Processor(
        2, 2, 64 * _K, 1 * _M, 32 * _M, 4, 3.0e9, 40e9, "Arm, Neoverse N2 Software Optimization Guide",
    ),
    # SVE is 256 bits wide on V1 and 128 on V2; both start as many bits of NEON a cycle.
    "neoverse-v1": Processor(
        4, 2, 64 * _K, 1 * _M, 32 * _M, 4, 2.6e9, 50e9, "Arm, Neoverse V1 Software Optimization Guide; AWS Graviton3",
    ),
    "neoverse-v2": Processor(
        4, 2, 64 * _K, 2 * _M, 36 * _M, 4, 2.8e9, 60e9, "Arm, Neoverse V2 Software Optimization Guide; AWS Graviton4",
    ),
    "apple-m1": _FIRESTORM,
    "apple-a14": _FIRESTORM,
    "haswell": Processor(
        2, 5, 32 * _K, 256 * _K, 8 * _M, 4, 3.4e9, 20e9, "Intel, Optimization Reference Manual; Core i7-4770",
    ),
    "skylake": Processor(
        2, 4, 32 * _K, 256 * _K, 8 * _M, 4, 3.6e9, 25e9, "Intel, Optimization Reference Manual; Core i7-6700",
    ),
    "skylake-avx512": Processor(
        2, 4, 32 * _K, 1 * _M, 24 * _M, 4, 2.7e9, 40e9, "Intel, Optimization Reference Manual; Xeon Platinum 8100",
    ),
    "icelake-server": Processor(
        2, 4, 48 * _K, 1280 * _K, 48 * _M, 4, 2.9e9, 40e9, "Intel, Optimization Reference Manual; Xeon Platinum 8300",
    ),
    "sapphirerapids": Processor(
        2, 4, 48 * _K, 2 * _M, 64 * _M, 4, 3.0e9, 50e9, "Intel, Optimization Reference Manual; Xeon Platinum 8400",
    ),
    "znver2": Processor(
        2, 5, 32 * _K, 512 * _K, 16 * _M, 4, 3.4e9, 25e9, "AMD, Software Optimization Guide 56305; EPYC 7002",
    ),
    "znver3": Processor(
        2, 4, 32 * _K, 512 * _K, 32 * _M, 4, 3.5e9, 30e9, "AMD, Software Optimization Guide 56665; EPYC 7003",
    ),
    # 512 bits in two halves: one FMA a cycle.
    "znver4": Processor(
        1, 4, 32 * _K, 1 * _M, 32 * _M, 4, 3.5e9, 35e9, "AMD, Software Optimization Guide 57647; EPYC 9004",
    ),
    "znver5": Processor(
        2, 4, 48 * _K, 1 * _M, 32 * _M, 4, 3.5e9, 45e9, "AMD, Software Optimization Guide 58455; EPYC 9005",
    ),
}  # fmt: skip

ALIASES = {"apple-m1": "apple-a14", "apple-m2": "apple-a15", "apple-m3": "apple-a16"}
"""Names that LLVM takes but leaves out of its list of processors, with the listed name of the same core."""
