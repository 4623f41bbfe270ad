"""The hardware models: what the machine can do, read from the machine, and printable.

`CPU(target)` describes the processor that a target names. The instruction set comes from LLVM; caches and cores of this
machine from the operating system, of another from what is published (`processors.py`); a JSON file overrides any.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from subtune import runtime, triples
from subtune.errors import TargetError
from subtune.processors import ALIASES, PROCESSORS

_SYSFS_DEVICES = Path("/sys/devices")

# Used where neither the operating system nor `processors.py` tells: the smallest caches of any server core of the
# last ten years; four cores, as small boards and small cloud machines have.
_FALLBACK_CACHES = {"l1d": 32 * 1024, "l2": 256 * 1024, "l3": 8 * 1024 * 1024, "line": 64}
_FALLBACK_CORES = 4

_ARCHITECTURES = ("x86_64", "aarch64")
_OTHER_TRIPLES = ("aarch64-linux-gnu", "x86_64-linux-gnu")
_APPLE_TRIPLE = "arm64-apple-macosx11.0"


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
        if triples.architecture(self.triple) == "aarch64":
            config["mattr"] = ["+neon"]
        return Target(config)

    def obstacle(self) -> str:
        """Why what is built for this processor cannot run in this process; "" when it can."""
        if not triples.is_here(self.triple):
            return f"this machine is {triples.here()}"
        if missing := runtime.missing_features(self.features):
            return f"this processor lacks {', '.join(missing)}"
        return ""

    def stand_in(self) -> CPUModel:
        """This model with the instruction set of the machine here: it schedules alike, and what is built runs here.

        LLVM takes vectors of any width, so the very PrimFuncs that are built for the other machine can be checked.
        """
        here = CPU("auto")
        threads = min(self.threads, usable_cores())
        return replace(self, name=here.name, triple=here.triple, features=here.features, threads=threads)

    def fingerprint(self) -> str:
        """Short text that is equal exactly for devices whose measurements may be exchanged."""
        caches = f"{self.l1d_bytes // 1024}K-{self.l2_bytes // 1024}K-{self.l3_bytes // 1024}K"
        isa = f"{triples.architecture(self.triple)}/{self.name or 'generic'}/{self.vector_bytes * 8}b"
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
    """The model of the processor `target` names, running `threads` threads.

    Without `threads`: on this machine its fast cores that are usable (of hyperthreads each counts, where the system
    shows them); on another the target's `num-cores`, else what `processors.py` says, else 4.

    Args:
        target: "auto" for this machine; an LLVM processor name ("znver4", "cortex-a76", "apple-m1"); a tag of TVM's
            ("raspberry-pi/4b-aarch64"); or `mcpu`, `mtriple` and `num-cores` as a mapping or a JSON object.
    """
    name, triple, cores = _read_target(target)
    if threads is not None and threads < 1:
        raise TargetError(f"the number of threads must be at least 1, not {threads}")
    if triples.architecture(triple) not in _ARCHITECTURES:
        raise TargetError(f"target {target!r}: the policies know the processors of {' and '.join(_ARCHITECTURES)} only")
    if name and ALIASES.get(name, name) not in _names(triple):
        raise TargetError(
            f"LLVM knows no processor {name!r} for {triple}; name one as `clang -mcpu=help` does, or use auto"
        )
    features = _features(name, triple)
    published = PROCESSORS.get(name)
    if triples.architecture(triple) == "aarch64":
        vector_bytes, registers, fma, latency = 16, 32, 2, 4  # NEON, also where there is SVE
    elif "avx512f" in features:
        vector_bytes, registers, fma, latency = 64, 32, 2, 4
    elif "avx2" in features:
        vector_bytes, registers, fma, latency = 32, 16, 2, 4
    else:
        vector_bytes, registers, fma, latency = 16, 16, 1, 8
    if published:
        fma, latency = published.fma_per_cycle, published.fma_latency
    model = CPUModel(
        name=name,
        triple=triple,
        features=tuple(sorted(features & _RELEVANT_FEATURES)),
        vector_bytes=vector_bytes,
        vector_registers=registers,
        fma_per_cycle=fma,
        fma_latency=latency,
        l1d_bytes=_FALLBACK_CACHES["l1d"],
        l2_bytes=_FALLBACK_CACHES["l2"],
        l3_bytes=_FALLBACK_CACHES["l3"],
        line_bytes=_FALLBACK_CACHES["line"],
        threads=threads or cores or _FALLBACK_CORES,
        cycles_per_s=3.5e9,
        dram_bytes_per_s=25e9,
    )
    if published:
        model = replace(
            model,
            l1d_bytes=published.l1d_bytes,
            l2_bytes=published.l2_bytes,
            l3_bytes=published.l3_bytes,
            line_bytes=published.line_bytes,
            threads=threads or cores or published.cores,
        )
    if not model.obstacle():
        return replace(model, **_caches(), threads=threads or cores or len(_usable(fast=True)))
    if published:
        model = replace(model, cycles_per_s=published.cycles_per_s, dram_bytes_per_s=published.dram_bytes_per_s)
    return model


def source(device: CPUModel) -> str:
    """Where the figures of `device` come from that LLVM does not know: caches, FMA units, clock."""
    if not device.obstacle():
        return "this machine's operating system; clock and memory bandwidth are nominal"
    if published := PROCESSORS.get(device.name):
        return f"published, not measured: {published.source}"
    return "none for this processor: typical figures, which --device FILE.json overrides"


def _read_target(target: str | Mapping[str, Any]) -> tuple[str, str, int | None]:
    """LLVM's name of the processor, the triple, and the number of cores if the target gives one."""
    from tvm.target import Target

    if target == "auto":
        return _global("target.llvm_get_system_cpu"), _global("target.llvm_get_system_triple"), None
    fields: dict[str, Any]
    if not isinstance(target, str):
        fields = dict(target)
    elif target.lstrip().startswith("{"):
        try:
            fields = json.loads(target)
        except ValueError as e:
            raise TargetError(f"target {target!r} is no JSON object: {e}") from e
    elif target.startswith("llvm"):  # as TVM wrote targets before it took JSON only
        fields = dict(re.findall(r"-(mcpu|mtriple|num-cores)=(\S+)", target))
    elif "/" in target:
        try:
            fields = json.loads(str(Target(target)))
        except (ValueError, RuntimeError) as e:
            raise TargetError(f"TVM has no target tag {target!r}: see tvm.target.list_tags()") from e
    else:
        fields = {"mcpu": target}
    if str(fields.get("kind", "llvm")) != "llvm":
        raise TargetError(f"target {target!r}: only the kind llvm, CPUs, is supported")
    name = str(fields.get("mcpu", ""))
    triple = str(fields.get("mtriple") or _triple_of(name))
    extensions = {str(extension) for extension in fields.get("mattr", ())}
    if unknown := sorted(extensions - {f"+{feature}" for feature in _features(name, triple)}):
        raise TargetError(
            f"target {target!r}: mattr {', '.join(unknown)} is not what {name or 'any processor of ' + triple} has; "
            "name the processor that has it as mcpu"
        )
    cores = fields.get("num-cores")
    if cores is not None and not str(cores).isdecimal():
        raise TargetError(f"target {target!r}: num-cores must be a number, not {cores!r}")
    return name, triple, int(cores) if cores else None


def _triple_of(name: str) -> str:
    """The triple that processor `name` is meant for: this machine's if LLVM knows the name there."""
    system = _global("target.llvm_get_system_triple")
    known = ALIASES.get(name, name)
    for triple in (system, *_OTHER_TRIPLES):
        if not name or known in _names(triple):
            is_apple = known.startswith("apple-") and triples.system(system) != "darwin"
            return _APPLE_TRIPLE if is_apple and triples.architecture(system) != "aarch64" else triple
    return system


def _names(triple: str) -> frozenset[str]:
    """LLVM's names of the processors of the triple's architecture."""
    import tvm
    from tvm.target import Target

    names = tvm.get_global_func("target.llvm_get_cpu_archlist")(Target({"kind": "llvm", "mtriple": triple}))
    return frozenset(str(name) for name in names)


def _features(name: str, triple: str) -> frozenset[str]:
    import tvm
    from tvm.target import Target

    config = {"kind": "llvm", "mtriple": triple, **({"mcpu": name} if name else {})}
    return frozenset(str(f) for f in dict(tvm.get_global_func("target.llvm_get_cpu_features")(Target(config))))


def _global(name: str) -> str:
    import tvm

    return str(tvm.get_global_func(name)())


_RELEVANT_FEATURES = frozenset(
    "sse4.2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512vnni avx512bf16 avx512fp16 avxvnni "
    "amx-tile amx-int8 amx-bf16 neon fp-armv8 dotprod i8mm bf16 fullfp16 sve".split()
)


def usable_cores() -> int:
    """Cores this process may run on: affinity and the container's quota, not what the machine has."""
    return len(_usable())


def _usable(fast: bool = False) -> list[int]:
    """Numbers of the cores this process may run on, no more than its quota; with `fast`, of the fastest kind only.

    A parallel loop is cut into equal parts: one slow core among fast ones keeps all of them waiting.
    """
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = sorted(affinity)
    if fast:
        cores = _fastest(cores)
    return cores[: _quota()]


def _quota() -> int | None:
    """Whole cores that the container may use, at least one; None if it is not limited."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, int(quota) // int(period)) if quota != "max" else None
    except (OSError, ValueError):
        return None


_FAST_CAPACITY = 0.6
"""Of the fastest core's capacity: the middle cores of phones are above, the small ones at a third."""


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


def _caches() -> dict[str, Any]:
    """The data caches of one of the fast cores from sysfs, in bytes, by the fields of `CPUModel`; what it tells."""
    found: dict[str, int] = {}
    folder = _SYSFS_DEVICES / "system" / "cpu" / f"cpu{_usable(fast=True)[0]}" / "cache"
    for index in sorted(folder.glob("index*")):
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
        found["l1d_bytes" if level == "1" else f"l{level}_bytes"] = int(size[:-1]) * scale
        if line.isdigit():
            found["line_bytes"] = int(line)
    if "l2_bytes" in found:
        found.setdefault("l3_bytes", found["l2_bytes"])  # small boards have no third level
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
