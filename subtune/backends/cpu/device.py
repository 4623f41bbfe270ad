"""The hardware models: what the machine can do, read from the machine, and printable.

`CPU(target)` describes the processor that a target names. The instruction set comes from LLVM; caches and cores of this
machine from the operating system, of another from what is published (`processors.py`); a JSON file overrides any.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from subtune import runtime
from subtune.backends.base import Host
from subtune.backends.calibration import calibrated, calibration_path, overridden
from subtune.backends.cpu.calibration import CostFigures, figures_of
from subtune.backends.cpu.math.byte_dots import bytes_per_multiply_add
from subtune.backends.cpu.processors import ALIASES, PROCESSORS
from subtune.backends.cpu.targets import features_of, processors_of, read_target
from subtune.core.errors import TargetError
from subtune.core.numerics import BYTES
from subtune.runtime import triples
from subtune.runtime.host import caches, fast_cores, usable_cores

# Used where neither the operating system nor `processors.py` tells: the smallest caches of any server core of the
# last ten years; four cores, as small boards and small cloud machines have.
_FALLBACK_CACHES = {"l1d": 32 * 1024, "l2": 256 * 1024, "l3": 8 * 1024 * 1024, "line": 64}
_FALLBACK_CORES = 4

_ARCHITECTURES = ("x86_64", "aarch64")
IN_L3 = "in-l3"
"""The state in which a model keeps all it works on in L3."""


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
    calibration: CostFigures
    """Of the cost models."""
    keeps_working_set: bool = False
    """Whether L3 keeps all that a run of the model reads and writes until the next run: see `for_working_set`."""

    @property
    def host(self) -> Host:
        return Host(self.triple, self.features, self.threads)

    @property
    def description(self) -> str:
        return f"{self.name or 'any'} {self.triple} with {self.threads} threads"

    @property
    def between_kernels_s(self) -> float:
        """What a kernel takes in a network and not alone: its launch, and inputs that lie in another core's cache.

        MobileNetV2 and EfficientNet take 0.25 to 0.5 ms more than the least times of their 50 kernels; taken into
        account it makes them 3 to 4 % faster at best and up to 11 % where other programs use the memory, too.
        """
        return self.calibration.between_kernels_s if self.threads > 1 else 0.0

    @property
    def has_tiles(self) -> bool:
        """Whether kernels can multiply tiles of bfloat16 (AMX): Linux lets a process have the registers that asks."""
        return "amx-bf16" in self.features and triples.system(self.triple) == "linux"

    @property
    def has_byte_tiles(self) -> bool:
        """Whether they can multiply tiles of bytes."""
        return "amx-int8" in self.features and triples.system(self.triple) == "linux"

    @property
    def has_costly_denormals(self) -> bool:
        """Whether it computes with denormal numbers far more slowly than with others."""
        return triples.architecture(self.triple) == "x86_64"

    def lanes(self, dtype_bits: int = 32) -> int:
        """Elements of `dtype_bits` bits in one vector register."""
        return self.vector_bytes * 8 // dtype_bits

    def peak_flops(self, dtype: str = "") -> float:
        """Operations per second: of bytes where instructions, or tile registers, multiply them, else in float32.

        Other types compute in that, or a few times faster.
        """
        rate = 2.0 * self.lanes() * self.fma_per_cycle * self.cycles_per_s * self.threads
        if dtype in BYTES and self.has_byte_tiles:
            return _TILE_OPS_PER_CYCLE * self.cycles_per_s * self.threads
        return rate * bytes_per_multiply_add(self.features, self.lanes()) if dtype in BYTES else rate

    @property
    def past_l2_bytes(self) -> int:
        """Of copies of a kernel's arguments: more than all L2 caches hold, and no more than L3 does.

        Where L3 keeps what a model uses there is one set of it: of as much as L2 holds, no copies go round.
        """
        times = 1 if self.keeps_working_set else 4
        return min(times * self.l2_bytes * self.threads, self.l3_bytes // 2)

    def comes_from_memory(self, weights_bytes: int) -> bool:
        """Whether a subgraph with so many bytes of weights belongs to a model whose weights do not stay in L3.

        A hundredth of L3 for one of a model's dozens of subgraphs: all of them, what lies between them and what else
        runs on the machine exceed it. Measured against a sixteenth on two Zen 5 cores with 32 MB: ResNet-50 1.04,
        MobileNetV2 1.08, an LSTM 1.32 times as fast; against a five-hundredth nothing changes. Of a model that L3 keeps
        whole, those weights come from memory that have outgrown half of L3 as they were packed (`for_working_set`).
        """
        return (2 if self.keeps_working_set else 100) * weights_bytes >= self.l3_bytes

    def for_working_set(self, nbytes: int) -> CPUModel:
        """As it is for a model that reads and writes so many bytes in a run: half of L3 is kept until the next run.

        Single layers of BERT are such models. Tuned with their weights in L3, on two Zen 4 cores, they are 1.05 (one
        row) to 1.18 times (12 rows) as fast as tuned with weights from memory, which panels are fetched ahead for.
        """
        return replace(self, keeps_working_set=2 * nbytes <= self.l3_bytes)

    @property
    def measured_state(self) -> str:
        return IN_L3 if self.keeps_working_set else ""

    def target(self) -> Any:
        """The `tvm.target.Target` kernels are built for."""
        from tvm.target import Target

        config: dict[str, Any] = {"kind": "llvm", "mtriple": self.triple, "num-cores": self.threads}
        if self.name:
            config["mcpu"] = self.name
            named = features_of(self.name, self.triple) & _RELEVANT_FEATURES
            absent, more = named - set(self.features), self._more_features()
            if absent or more:
                config["mattr"] = [*(f"-{feature}" for feature in sorted(absent)), *(f"+{feature}" for feature in more)]
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

    def _more_features(self) -> list[str]:
        """Beside those of the processor's name: a virtual machine may go by an older one's."""
        if not self.name or triples.architecture(self.triple) != "x86_64":
            return []
        return sorted(set(self.features) - features_of(self.name, self.triple))

    def fingerprint(self) -> str:
        """Short text that is equal exactly for devices whose measurements may be exchanged."""
        caches = f"{self.l1d_bytes // 1024}K-{self.l2_bytes // 1024}K-{self.l3_bytes // 1024}K"
        name = "+".join([self.name or "generic", *self._more_features()])
        isa = f"{triples.architecture(self.triple)}/{name}/{self.vector_bytes * 8}b"
        return f"cpu/{isa}/{caches}/t{self.threads}"

    def to_json(self) -> str:
        """Of the processor; nothing of what it is to run."""
        fields = asdict(self)
        del fields["keeps_working_set"]
        return json.dumps(fields, indent=2)

    def overridden(self, path: str | os.PathLike[str], threads: int | None = None) -> CPUModel:
        """This model with the fields that the JSON object in `path` gives; `threads` goes before the file's."""
        model = overridden(self, path)
        return replace(model, threads=threads) if threads else model

    @property
    def source(self) -> str:
        """Where the figures come from that LLVM does not know: caches, FMA units, clock."""
        here = not self.obstacle()
        if here and (path := calibration_path(self.fingerprint())).is_file():
            return f"this machine's operating system; clock, bandwidths and costs measured, {path}"
        if here:
            return "this machine's operating system; clock and memory bandwidth nominal until --calibrate"
        if published := PROCESSORS.get(self.name):
            return f"published, not measured: {published.source}"
        return "none for this processor: typical figures, which --device FILE.json overrides"


def CPU(target: str | Mapping[str, Any] = "auto", threads: int | None = None) -> CPUModel:
    """The model of the processor `target` names, running `threads` threads.

    Without `threads`: on this machine its fast cores that are usable (of hyperthreads each counts, where the system
    shows them); on another the target's `num-cores`, else what `processors.py` says, else 4.

    Args:
        target: "auto" for this machine; an LLVM processor name ("znver4", "cortex-a76", "apple-m1"); a tag of TVM's
            ("raspberry-pi/4b-aarch64"); or `mcpu`, `mtriple` and `num-cores` as a mapping or a JSON object.
    """
    named = read_target(target)
    name, triple, cores = named.name, named.triple, named.cores
    if threads is not None and threads < 1:
        raise TargetError(f"the number of threads must be at least 1, not {threads}")
    if triples.architecture(triple) not in _ARCHITECTURES:
        raise TargetError(f"target {target!r}: the policies know the processors of {' and '.join(_ARCHITECTURES)} only")
    if name and ALIASES.get(name, name) not in processors_of(triple):
        raise TargetError(
            f"LLVM knows no processor {name!r} for {triple}; name one as `clang -mcpu=help` does, or use auto"
        )
    features = (features_of(name, triple) | named.added) - named.removed
    if target == "auto":  # a hypervisor may hide instructions that the processor's name promises to LLVM, or its name
        features -= set(runtime.missing_features(tuple(sorted(features & _RELEVANT_FEATURES))))
        if triples.architecture(triple) == "x86_64":
            features |= runtime.present_features(_X86_FEATURES)
    vector_bytes, registers, fma, latency = _vectors(name, triple, features)
    published = PROCESSORS.get(name)
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
        dram_bytes_per_s=50e9,  # two cores read 31e9 on a Zen 4, 50e9 to 65e9 on a Zen 5
        calibration=figures_of(name),
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
        here = replace(model, **caches(), threads=threads or cores or len(fast_cores()))
        return calibrated(here, here.fingerprint())
    if published:
        model = replace(model, cycles_per_s=published.cycles_per_s, dram_bytes_per_s=published.dram_bytes_per_s)
    return model


def _vectors(name: str, triple: str, features: Collection[str]) -> tuple[int, int, int, int]:
    """Bytes of a vector register, how many there are, multiply-adds started a cycle, cycles that one takes."""
    if triples.architecture(triple) == "aarch64":
        nbytes, registers, fma, latency = 16, 32, 2, 4  # NEON, also where there is SVE
    elif "avx512f" in features:
        nbytes, registers, fma, latency = 64, 32, 2, 4
    elif "avx2" in features:
        nbytes, registers, fma, latency = 32, 16, 2, 4
    else:
        nbytes, registers, fma, latency = 16, 16, 1, 8
    if published := PROCESSORS.get(name):
        # those of 64 bytes are two of 32 where AVX-512 is hidden
        is_halved = "avx512f" in features_of(name, triple) and nbytes == 32 and published.fma_per_cycle == 1
        fma, latency = (2 if is_halved else 1) * published.fma_per_cycle, published.fma_latency
    return nbytes, registers, fma, latency


_X86_FEATURES = frozenset(
    "sse4.2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512vnni avx512vbmi avx512bf16 avx512fp16 "
    "avxvnni amx-tile amx-int8 amx-bf16".split()
)
_TILE_OPS_PER_CYCLE = 2.0 * 16 * 16 * 64 / 16
"""A product of two tiles of bytes starts every 16 cycles (Intel, Optimization Reference Manual, 248966, chapter 20)."""
_RELEVANT_FEATURES = _X86_FEATURES | frozenset("neon fp-armv8 dotprod i8mm bf16 fullfp16 sve".split())
