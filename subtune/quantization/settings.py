"""What a user chooses of a quantisation. Everything else is fixed: it is what the integer kernels are exact for."""

from __future__ import annotations

from dataclasses import dataclass

from subtune.core.errors import ModelError

CALIBRATIONS = ("minmax", "entropy", "percentile")
FORMATS = ("qdq", "qoperator")


@dataclass(frozen=True, slots=True)
class Settings:
    """How to quantise. Raises ModelError where a setting has no such value."""

    calibration: str = "minmax"
    """How ranges are made of the values seen: `minmax` takes all of them, `percentile` 99.999 % of them, `entropy` the
    range whose 8 bits are distributed most like the values."""
    exclude: tuple[str, ...] = ()
    """Nodes that stay in float, by their names or by those of their results."""
    format: str = "qdq"
    """`qdq`: QuantizeLinear and DequantizeLinear round operators of ONNX; `qoperator`: QLinearConv and its like."""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("calibration", self.calibration, CALIBRATIONS),
            ("format", self.format, FORMATS),
        ):
            if value not in known:
                raise ModelError(f"There is no {what} {value!r}: use {', '.join(known[:-1])} or {known[-1]}.")
