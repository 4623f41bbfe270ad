"""The model of an NVIDIA GPU: read from the device where there is one, from published figures where there is none."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from subtune.backends.base import Host, OneState
from subtune.backends.calibration import calibrated, calibration_path, overridden
from subtune.backends.cuda.driver import DriverDevice, driver_device
from subtune.backends.cuda.published import Published, limits_of, named, representative
from subtune.core.errors import TargetError
from subtune.runtime import triples
from subtune.runtime.host import usable_cores

_OLDEST = 60  # what NVRTC of CUDA 12 still builds for


@dataclass(frozen=True, slots=True)
class CUDAModel(OneState):
    """What the policies know of a GPU. Sizes in bytes, rates per second, "per SM": of one streaming multiprocessor."""

    name: str
    """As published, e.g. `H200`; of a device that is not in the table, what the driver calls it."""
    arch: str
    """As nvcc names it, e.g. `sm_90a`."""
    capability: int
    """Ten times the compute capability, e.g. 90."""
    sms: int
    warp_size: int
    max_threads_per_block: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    """Of 32 bits."""
    max_registers_per_thread: int
    shared_per_block_bytes: int
    """The most a block can opt in to, not the 48 KB it has without asking."""
    shared_per_sm_bytes: int
    l2_bytes: int
    cycles_per_s: float
    dram_bytes_per_s: float
    l2_bytes_per_s: float
    shared_bytes_per_cycle: int
    """Per SM."""
    fma_per_cycle: int
    """float32 multiply-adds per SM."""
    mma_flops_per_cycle: tuple[tuple[str, int], ...]
    """Dense tensor-core operations per SM and cycle, by operand dtype; sums in float32 or int32."""
    launch_s: float
    """From one kernel's end to the next one's begin, in a CUDA graph."""

    @property
    def description(self) -> str:
        return f"{self.name} ({self.arch})"

    @property
    def host(self) -> Host:
        """This machine's processor: no extensions, threads for what runs beside the kernels."""
        return Host(triples.llvm_triple_here(), (), usable_cores())

    def comes_from_memory(self, weights_bytes: int) -> bool:
        return False  # kernels are timed with cold caches, as they find them

    @property
    def between_kernels_s(self) -> float:
        """As a CPU's: nothing that was measured; kernels are timed with cold caches, and launched by a graph."""
        return 0.0

    def mma_flops(self, dtype: str) -> float:
        """Tensor-core operations per second of the whole device on operands of `dtype`; 0.0 where it has none.

        Bytes are multiplied alike with and without a sign.
        """
        kind = "float8" if dtype.startswith("float8") else "int8" if dtype == "uint8" else dtype
        return dict(self.mma_flops_per_cycle).get(kind, 0) * self.sms * self.cycles_per_s

    def fma_flops(self) -> float:
        """float32 operations per second of the CUDA cores."""
        return 2.0 * self.fma_per_cycle * self.sms * self.cycles_per_s

    def peak_flops(self, dtype: str = "") -> float:
        """Operations per second on operands of `dtype`, or the most of any; float32 stays off the tensor cores."""
        types = [dtype] if dtype else [of for of, _ in self.mma_flops_per_cycle]
        return max(self.fma_flops(), *(self.mma_flops(of) for of in types if dtype != "float32"), 1.0)

    def target(self) -> Any:
        """The `tvm.target.Target` kernels are built for, with this machine's processor as its host."""
        from tvm.target import Target

        return Target(
            {
                "kind": "cuda",
                "arch": self.arch,
                "max_shared_memory_per_block": self.shared_per_block_bytes,
                "max_threads_per_block": self.max_threads_per_block,
                "max_num_threads": self.max_threads_per_block,
                "thread_warp_size": self.warp_size,
                "registers_per_block": self.registers_per_sm,
                "l2_cache_size_bytes": self.l2_bytes,
            },
            host={"kind": "llvm", "mtriple": self.host.triple},
        )

    @property
    def source(self) -> str:
        """Where the figures come from."""
        published = named(self.name)
        here = not self.obstacle()
        if here and (path := calibration_path(self.fingerprint())).is_file():
            return f"this GPU's driver; bandwidths and launch measured, {path}"
        if here:
            return "this GPU's driver; the bandwidth of L2 and the launch nominal until --calibrate"
        return f"published, not measured: {published.source}" if published else "those of a device of that architecture"

    def obstacle(self) -> str:
        """Why what is built for this GPU cannot run in this process; "" when it can."""
        here = driver_device()
        if isinstance(here, str):
            return here
        if not _runs_on(self.arch, here.capability):
            return f"this machine's GPU is {here.name} ({_arch_of(here.capability)}), not {self.arch}"
        if named(self.name) and named(here.name) != named(self.name) and self.name != here.name:
            return f"this machine's GPU is {here.name}, not {self.name}"
        from subtune import runtime

        return "" if runtime.has_cuda() else "TVM was installed without CUDA"

    def fingerprint(self) -> str:
        """Short text that is equal exactly for devices whose measurements may be exchanged."""
        name = self.name.lower().replace(" ", "-").replace("/", "-")
        return "/".join(["cuda", self.arch, name, f"{self.sms}sm"])

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def overridden(self, path: str | os.PathLike[str], threads: int | None = None) -> CUDAModel:
        """This model with the fields that the JSON object in `path` gives."""
        return overridden(self, path)


def is_cuda_target(target: Any) -> bool:
    """Whether `target` means a GPU of NVIDIA's, in any of the forms that `CUDA` takes but "auto"."""
    if isinstance(target, CUDAModel):
        return True
    if not isinstance(target, str | Mapping):
        return str(getattr(getattr(target, "kind", None), "name", "")) == "cuda"
    fields = _fields(target) if not isinstance(target, str) or target.lstrip().startswith("{") else None
    if fields is not None:
        return fields.get("kind") == "cuda"
    assert isinstance(target, str)
    text = target.strip()
    return bool(re.match(r"(cuda\b|sm_\d|nvidia/)", text)) or named(text) is not None


def CUDA(target: Any = "auto") -> CUDAModel:
    """The model of the GPU that `target` names.

    Args:
        target: "auto" or "cuda" for the GPU of this machine; a device ("H200", "RTX 4090"); a tag of TVM's
            ("nvidia/nvidia-h100"); an architecture ("sm_90a": the figures of a device that has it); a TVM target
            or its fields as a mapping or JSON object, `max_shared_memory_per_block` and the like included.

    Raises:
        TargetError: nothing of that name is known, or there is no GPU for "auto".

    >>> h100 = CUDA("nvidia/nvidia-h100")
    >>> h100.arch, h100.sms, h100.shared_per_block_bytes
    ('sm_90a', 132, 232448)
    >>> CUDA("sm_86").capability
    86
    """
    if isinstance(target, CUDAModel):
        return target
    if isinstance(target, str) and target.strip() in ("auto", "cuda"):
        here = driver_device()
        if isinstance(here, str):
            raise TargetError(
                f"there is no GPU to read: {here}; name one as the target, e.g. sm_90a or nvidia/nvidia-h100"
            )
        model = _of_driver(here)
        return calibrated(model, model.fingerprint())
    if isinstance(target, str) and (published := named(target)):
        return _of_published(published)
    if isinstance(target, str) and target.strip().startswith("sm_"):
        return _of_arch(target.strip())
    fields = _fields(target)
    if fields.get("kind", "cuda") != "cuda":
        raise TargetError(f"target {target!r} is of kind {fields['kind']}, not cuda")
    tag = str(fields.get("tag") or (target if isinstance(target, str) and "/" in target else ""))
    if published := named(tag) if tag else None:
        model = _of_published(published)
    elif fields.get("arch"):
        model = _of_arch(str(fields["arch"]), name=tag)
    else:
        model = CUDA("auto")
    return _with_attributes(model, fields)


def _fields(target: Any) -> dict[str, Any]:
    """A target's attributes, as TVM's JSON names them."""
    if isinstance(target, Mapping):
        return dict(target)
    text = str(target).strip()
    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as e:
            raise TargetError(f"target {target!r} is no JSON object: {e}") from e
    if text.startswith("cuda"):  # as TVM wrote targets before it took JSON only
        return {
            "kind": "cuda",
            **dict(re.findall(r"-(arch|max_shared_memory_per_block|max_threads_per_block)=(\S+)", text)),
        }
    if "/" in text:
        from tvm.target import Target

        try:
            return dict(json.loads(str(Target(text))))
        except (ValueError, RuntimeError) as e:
            raise TargetError(f"TVM has no target tag {target!r}: see tvm.target.list_tags()") from e
    raise TargetError(f"no GPU is known as {target!r}: name an architecture as sm_90a, or a device as H100")


def _capability(arch: str) -> int:
    match = re.fullmatch(r"sm_(\d{2,3})([af]?)", arch)
    if match is None:
        raise TargetError(f"{arch!r} is no architecture of NVIDIA's: write sm_ and the compute capability, e.g. sm_90a")
    if int(match[1]) < _OLDEST:
        raise TargetError(f"{arch} is too old: CUDA 12 builds for sm_{_OLDEST} and newer")
    return int(match[1])


def _arch_of(capability: int) -> str:
    """The architecture to build for where the device is known: with what only that capability has, if it has any."""
    return f"sm_{capability}a" if capability == 90 or 100 <= capability < 120 else f"sm_{capability}"


def _runs_on(arch: str, capability: int) -> bool:
    """Machine code runs on its own major version with the same or a later minor one; that of `sm_XYa` on XY only."""
    built = _capability(arch)
    if arch.endswith("a"):
        return built == capability
    return built // 10 == capability // 10 and built <= capability


def _of_arch(arch: str, name: str = "") -> CUDAModel:
    capability = _capability(arch)
    model = _of_published(representative(capability))
    return replace(_with_limits(model, capability), name=name or arch, arch=arch)


def _with_limits(model: CUDAModel, capability: int) -> CUDAModel:
    limits = limits_of(capability)
    return replace(
        model,
        capability=capability,
        max_threads_per_sm=limits.max_threads,
        max_blocks_per_sm=limits.max_blocks,
        shared_per_sm_bytes=limits.shared_bytes,
        shared_per_block_bytes=limits.shared_per_block_bytes,
        fma_per_cycle=limits.fma_per_cycle,
        mma_flops_per_cycle=limits.mma,
    )


def _of_published(device: Published) -> CUDAModel:
    capability = _capability(device.arch)
    limits = limits_of(capability)
    return CUDAModel(
        name=device.name,
        arch=device.arch,
        capability=capability,
        sms=device.sms,
        warp_size=32,
        max_threads_per_block=1024,
        max_threads_per_sm=limits.max_threads,
        max_blocks_per_sm=limits.max_blocks,
        registers_per_sm=64 * 1024,
        max_registers_per_thread=255,
        shared_per_block_bytes=limits.shared_per_block_bytes,
        shared_per_sm_bytes=limits.shared_bytes,
        l2_bytes=device.l2_bytes,
        cycles_per_s=device.cycles_per_s,
        dram_bytes_per_s=device.dram_bytes_per_s,
        l2_bytes_per_s=device.l2_bytes_per_s,
        shared_bytes_per_cycle=128,
        fma_per_cycle=limits.fma_per_cycle,
        mma_flops_per_cycle=device.mma or limits.mma,
        launch_s=0.6e-6,
    )


def _of_driver(here: DriverDevice) -> CUDAModel:
    if here.capability < _OLDEST:
        raise TargetError(
            f"{here.name} has compute capability {here.major}.{here.minor}: CUDA 12 builds for 6.0 and newer"
        )
    published = named(here.name)
    if published and _capability(published.arch) == here.capability:
        model = _of_published(published)
    else:
        model = replace(_of_arch(_arch_of(here.capability)), name=here.name)
    known: dict[str, Any] = {
        "sms": here.sms,
        "warp_size": here.warp_size,
        "max_threads_per_block": here.max_threads_per_block,
        "max_threads_per_sm": here.max_threads_per_sm,
        "max_blocks_per_sm": here.max_blocks_per_sm,
        "registers_per_sm": here.registers_per_sm,
        "shared_per_block_bytes": here.shared_per_block_bytes,
        "shared_per_sm_bytes": here.shared_per_sm_bytes,
        "l2_bytes": here.l2_bytes,
        # two transfers a clock
        "dram_bytes_per_s": 2e3 * here.memory_khz * here.memory_bus_bits / 8,
    }
    if published is None:
        known["cycles_per_s"] = 1e3 * here.clock_khz
    return replace(model, **{field: value for field, value in known.items() if value})


_ATTRIBUTES = {
    "max_threads_per_block": "max_threads_per_block",
    "max_shared_memory_per_block": "shared_per_block_bytes",
    "thread_warp_size": "warp_size",
    "l2_cache_size_bytes": "l2_bytes",
    "multi_processor_count": "sms",
}


def _with_attributes(model: CUDAModel, fields: Mapping[str, Any]) -> CUDAModel:
    """What a target says beside its architecture; 48 KB of shared memory, as TVM's tags say of all, says nothing."""
    found: dict[str, Any] = {}
    for attribute, field in _ATTRIBUTES.items():
        value = fields.get(attribute)
        if value is None or (attribute == "max_shared_memory_per_block" and int(value) == 48 * 1024):
            continue
        if not str(value).isdecimal() or int(value) == 0:
            raise TargetError(f"the target's {attribute} must be a positive number, not {value!r}")
        found[field] = int(value)
    return replace(model, **found)
