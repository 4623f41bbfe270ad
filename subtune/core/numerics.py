"""What the user allows a kernel to round: switches of a compile, no part of any hardware model."""

from __future__ import annotations

from dataclasses import dataclass

from subtune.core.errors import TargetError

PRECISIONS = ("fp32", "bf16", "fp16")
_HALVES = {"bf16": "bfloat16", "fp16": "float16"}
HALVES = frozenset(_HALVES.values())
BYTES = frozenset({"int8", "uint8"})
FLOAT8 = "float8_e4m3fn"
OF_8_BITS = BYTES | {FLOAT8}
"""What is quantised to that products have units for."""
TENSOR_CORE = ("auto", "off", "only")


@dataclass(frozen=True, slots=True)
class Numerics:
    """Which kernels may be candidates, and in what the model's products are computed.

    Raises:
        TargetError: `tensor_core` or `precision` is not one of `TENSOR_CORE`, `PRECISIONS`.
    """

    exact: bool = False
    """Only kernels that round as the model says: no Winograd, no Strassen, no float32 as sums of tf32, bfloat16 or
    bytes, libm's exp, tanh and erf, denormal numbers as they are."""
    tf32: bool = False
    """float32 products may be rounded to tf32, on a GPU that can."""
    tensor_core: str = "auto"
    """Of a GPU. `auto`: whatever is fastest; `off`: CUDA cores only; `only`: tensor cores where they apply."""
    precision: str = "fp32"
    """Of products: `fp32` keeps the model's types, `bf16` and `fp16` convert the module before it is partitioned."""

    def __post_init__(self) -> None:
        for name, known in (("tensor_core", TENSOR_CORE), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise TargetError(f"there is no {name} {getattr(self, name)!r}: choose {' or '.join(known)}")

    @property
    def half(self) -> str:
        """The type of products that the precision asks for, "" where the model keeps its own."""
        return _HALVES.get(self.precision, "")

    @property
    def tags(self) -> tuple[str, ...]:
        """What distinguishes measurements under these switches from others; the precision is in the workload itself."""
        return (
            *([f"tensor_core={self.tensor_core}"] if self.tensor_core != "auto" else []),
            *(["tf32"] if self.tf32 else []),
            *(["exact"] if self.exact else []),
        )


PLAIN = Numerics()
"""Every kernel that rounds no worse than the model does, in the model's own types."""
