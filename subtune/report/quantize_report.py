"""What a quantisation did and lost, for people and for machines."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from subtune.quantization.loss import Losses
from subtune.quantization.settings import Settings

if TYPE_CHECKING:
    import onnx

_SHOWN = 12
"""Layers: the rest loses less."""


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """A quantised model and how it was made.

    Attributes:
        model: the `onnx.ModelProto`; `path` is its file, "" where none was written.
        samples: how many runs the ranges were taken from.
        products: how many convolutions and products have integers for operands, and how many there are that could.
        bytes: of the float model and of this one.
        losses: in dB, of every layer (that which loses most first) and of every output.
        notes: what a user should hear of, a line each.
    """

    model: onnx.ModelProto
    name: str
    path: str
    settings: Settings
    samples: int
    products: tuple[int, int]
    bytes: tuple[int, int]
    losses: Losses
    seconds: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Everything but the model itself; what loses nothing has null for its dB."""
        losses = self.losses
        return json.dumps(
            {
                "name": self.name,
                "path": self.path,
                **asdict(self.settings),
                "samples": self.samples,
                "products": {"quantised": self.products[0], "all": self.products[1]},
                "bytes": {"float": self.bytes[0], "quantised": self.bytes[1]},
                "outputs_db": {name: _number(db) for name, db in losses.outputs.items()},
                "compared_samples": losses.samples,
                "layers": [{key: _number(value) for key, value in asdict(layer).items()} for layer in losses.layers],
                "seconds": self.seconds,
                "notes": self.notes,
            },
            indent=2,
        )

    def __str__(self) -> str:
        done, all_ = self.products
        before, after = (count / 1e6 for count in self.bytes)
        layers = self.losses.layers[:_SHOWN]
        rows = [("layer", "operator", "result", "weights", "so far")]
        rows += [
            (layer.name, layer.op, _text(layer.result_db), _text(layer.weights_db), _text(layer.total_db))
            for layer in layers
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = [
            f"{done} of {all_} products in 8 bits, {self.settings.calibration} of {self.samples} samples, "
            f"{before:.1f} MB before, {after:.1f} MB now",
            *self.notes,
            "signal to quantisation noise in dB (20: an error of a tenth), of a layer's own rounding and all so far:",
        ]
        lines += [
            f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  "
            + "  ".join(f"{text:>{width}}" for text, width in zip(row[2:], widths[2:], strict=True))
            for row in rows
        ]
        if (more := len(self.losses.layers) - len(layers)) > 0:
            lines.append(f"and {more} more that lose less (--json has all)")
        lines += [f"output {name}: {_text(db)} dB" for name, db in self.losses.outputs.items()]
        lines.append(f"{self.seconds:.1f} s" + (f"; wrote {self.path}" if self.path else ""))
        return "\n".join(lines)


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(db: float) -> str:
    return f"{db:.1f}" if math.isfinite(db) else "-"
