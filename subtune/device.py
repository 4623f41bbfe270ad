"""The hardware models: what the machine can do, read from the machine, and printable.

`CPU(target)` describes the processor that a target names. The host's own properties (caches, cores that may
really be used) come from the operating system, the instruction set from LLVM; a JSON file overrides any of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from subtune.errors import TargetError

_SYSFS_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

# Used where the operating system does not tell: the smallest caches of any server core of the last ten years.
_FALLBACK_CACHES = {"l1d": 32 * 1024, "l2": 256 * 1024, "l3": 8 * 1024 * 1024, "line": 64}


@dataclass(frozen=True, slots=True)
class CPUModel:
    """What the policies know of a processor. Sizes in bytes, per core unless said."""

    name: str
    """LLVM's name of the processor, e.g. `znver4`: the target's `mcpu`."""
    triple: str
    """LLVM target triple, e.g. `x86_64-linux-gnu`."""
    features: tuple[str, ...]
    """Instruction-set extensions the policies ask about, e.g. `avx512f`, `avx512vnni`, `avx512bf16`, `neon`."""
    vector_bytes: int
    """Width of one vector register."""
    vector_registers: int
    """Architectural vector registers."""
    fma_per_cycle: int
    """Vector fused multiply-adds one core starts per cycle."""
    fma_latency: int
    """Cycles until the result of a fused multiply-add can be used."""
    l1d_bytes: int
    l2_bytes: int
    l3_bytes: int
    """Of the whole socket."""
    line_bytes: int
    threads: int
    """Threads the compiled model runs on."""
    cycles_per_s: float
    """Nominal; only ratios of predictions matter."""
    dram_bytes_per_s: float
    """Of all threads together; nominal."""
    exact_math: bool = False
    """Only kernels that round as the model says: no Winograd, and libm's exp, tanh and erf instead of polynomials."""

    def lanes(self, dtype_bits: int = 32) -> int:
        """Elements of `dtype_bits` bits in one vector register."""
        return self.vector_bytes * 8 // dtype_bits

    def peak_flops(self, threads: int | None = None) -> float:
        """Floating-point operations per second in float32."""
        return 2.0 * self.lanes() * self.fma_per_cycle * self.cycles_per_s * (threads or self.threads)

    def comes_from_memory(self, weights_bytes: int) -> bool:
        """Whether a subgraph with so many bytes of weights belongs to a model whose weights do not stay in L3.

        A thirty-second of L3 for one of a model's dozens of subgraphs: all of them together exceed it.
        """
        return 32 * weights_bytes >= self.l3_bytes

    def target(self) -> Any:
        """The `tvm.target.Target` kernels are built for."""
        from tvm.target import Target

        config: dict[str, Any] = {"kind": "llvm", "mtriple": self.triple, "num-cores": self.threads}
        if self.name:
            config["mcpu"] = self.name
        if self.triple.startswith("aarch64"):
            config["mattr"] = ["+neon"]
        return Target(config)

    def fingerprint(self) -> str:
        """Short text that is equal exactly for devices whose measurements may be exchanged."""
        caches = f"{self.l1d_bytes // 1024}K-{self.l2_bytes // 1024}K-{self.l3_bytes // 1024}K"
        isa = f"{self.triple.split('-')[0]}/{self.name or 'generic'}/{self.vector_bytes * 8}b"
        return f"cpu/{isa}/{caches}/t{self.threads}" + ("/exact" if self.exact_math else "")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> CPUModel:
        data = json.loads(text)
        return cls(**{**data, "features": tuple(data["features"])})

    def overridden(self, path: str | os.PathLike[str]) -> CPUModel:
        """This model with the fields that the JSON object in `path` gives."""
        try:
            data = json.loads(Path(path).read_text())
        except (OSError, ValueError) as e:
            raise TargetError(f"cannot read the device description {path}: {e}; give a JSON object of fields") from e
        known = {f.name: f.type for f in fields(self)}
        if not isinstance(data, dict) or (unknown := sorted(set(data) - set(known))):
            what = f"unknown fields {', '.join(unknown)}" if isinstance(data, dict) else "it is not a JSON object"
            raise TargetError(f"device description {path}: {what}; known fields are {', '.join(known)}")
        for name, value in data.items():
            _check_override(path, name, known[name], value)
        if "features" in data:
            data["features"] = tuple(data["features"])
        return replace(self, **data)


def CPU(target: str | Mapping[str, Any] = "auto", threads: int | None = None) -> CPUModel:
    """The model of the processor `target` names, running `threads` threads (default: the cores usable here).

    Args:
        target: "auto" for this machine, an LLVM processor name ("znver4", "skylake-avx512", "apple-m1"),
            or a mapping with `mcpu` and `mtriple`.
    """
    import tvm
    from tvm.target import Target

    if target == "auto":
        name = str(tvm.get_global_func("target.llvm_get_system_cpu")())
        triple = str(tvm.get_global_func("target.llvm_get_system_triple")())
    elif isinstance(target, str):
        name, triple = target, str(tvm.get_global_func("target.llvm_get_system_triple")())
    else:
        name = str(target.get("mcpu", ""))
        triple = str(target.get("mtriple", "") or tvm.get_global_func("target.llvm_get_system_triple")())
    if threads is not None and threads < 1:
        raise TargetError(f"the number of threads must be at least 1, not {threads}")
    is_arm = triple.startswith("aarch64")
    config: dict[str, Any] = {"kind": "llvm", "mtriple": triple}
    if name:
        config["mcpu"] = name
    arch_list = tvm.get_global_func("target.llvm_get_cpu_archlist")
    archs = {str(arch) for arch in arch_list(Target({"kind": "llvm", "mtriple": triple}))}
    if name and name not in archs:
        raise TargetError(
            f"LLVM knows no processor {name!r} for {triple}; name one as `clang -mcpu=help` does, or use auto"
        )
    features = {str(f) for f in dict(tvm.get_global_func("target.llvm_get_cpu_features")(Target(config)))}
    if is_arm:
        vector_bytes, registers, fma, latency = 16, 32, 2, 4
    elif "avx512f" in features:
        # Zen 4 starts one 512-bit FMA a cycle in two halves; Zen 5 and Intel's server cores two.
        vector_bytes, registers, fma, latency = 64, 32, 1 if name == "znver4" else 2, 4
    elif "avx2" in features:
        vector_bytes, registers, fma, latency = 32, 16, 2, 4
    else:
        vector_bytes, registers, fma, latency = 16, 16, 1, 8
    caches = _caches()
    return CPUModel(
        name=name,
        triple=triple,
        features=tuple(sorted(features & _RELEVANT_FEATURES)),
        vector_bytes=vector_bytes,
        vector_registers=registers,
        fma_per_cycle=fma,
        fma_latency=latency,
        l1d_bytes=caches["l1d"],
        l2_bytes=caches["l2"],
        l3_bytes=caches["l3"],
        line_bytes=caches["line"],
        threads=threads or usable_cores(),
        cycles_per_s=3.5e9,
        dram_bytes_per_s=25e9,
    )


_RELEVANT_FEATURES = frozenset(
    "sse4.2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512vnni avx512bf16 avx512fp16 avxvnni "
    "amx-tile amx-int8 amx-bf16 neon fp-armv8 dotprod i8mm bf16 fullfp16 sve".split()
)


def usable_cores() -> int:
    """Cores this process may run on: affinity and the container's quota, not what the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    if quota == "max":
        return cores
    return max(1, min(cores, int(quota) // int(period)))


def _caches() -> dict[str, int]:
    """Data cache sizes and line of core 0 from sysfs, in bytes."""
    found = dict(_FALLBACK_CACHES)
    for index in sorted(_SYSFS_CACHES.glob("index*")):
        try:
            level = (index / "level").read_text().strip()
            kind = (index / "type").read_text().strip()
            size = (index / "size").read_text().strip()
            line = (index / "coherency_line_size").read_text().strip()
        except OSError:
            continue
        if kind == "Instruction" or level not in "123" or not size[:-1].isdigit():
            continue
        scale = {"K": 1024, "M": 1024**2}.get(size[-1], 1)
        found["l1d" if level == "1" else f"l{level}"] = int(size[:-1]) * scale
        found["line"] = int(line) if line.isdigit() else found["line"]
    return found


def _check_override(path: Any, name: str, annotation: Any, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    wants = str(annotation)
    fits = {
        "str": isinstance(value, str),
        "int": is_number and float(value).is_integer() and value > 0,
        "float": is_number and value > 0,
        "bool": isinstance(value, bool),
    }.get(wants, isinstance(value, list) and all(isinstance(v, str) for v in value))
    if not fits:
        raise TargetError(f"device description {path}: {name} must be a positive {wants}, not {value!r}")
