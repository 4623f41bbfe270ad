"""The call of ONNX Runtime's static quantiser: bytes for activations, signed symmetric ones for weights by channel."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from subtune.core.errors import InputError, ModelError, SubtuneError
from subtune.core.scratch import temporary
from subtune.quantization.calibration import Feed
from subtune.quantization.choice import OPERATORS, chosen, excluded, products
from subtune.quantization.loss import Losses, measure, require_same
from subtune.quantization.settings import Settings
from subtune.quantization.simplify import OPSET, domains, opset_of, require_float, simplified

_OPTIONS = {
    "ActivationSymmetric": False,  # u8 with a zero point
    "WeightSymmetric": True,  # s8 without one, so that nothing is subtracted from weights
    "CalibStridedMinMax": 1,  # one feed at a time: a histogram would keep every activation of all of them
}


@dataclass(frozen=True, slots=True)
class Quantised:
    """A quantised model.

    Attributes:
        model: with the inputs, outputs and metadata of the float one.
        products: how many of them have integers for operands, and how many there are with constant weights.
    """

    model: onnx.ModelProto
    products: tuple[int, int]


def quantised(model: onnx.ModelProto, feeds: Sequence[Feed], settings: Settings | None = None) -> Quantised:
    """`model` with products of integers. It stays as it is; the same call gives the same bytes.

    Args:
        model: of float32, its nodes sorted, all shapes fixed.
        feeds: what to calibrate with, at least one.

    Raises:
        SubtuneError: ONNX Runtime is not installed.
        ModelError: nothing to quantise, quantised already, not float32, a node to exclude that is none.
        InputError: the model does not run on a feed.
    """
    with _working(model, feeds, settings or Settings()) as work:
        return Quantised(work.made, work.products)


def quantised_and_measured(
    model: onnx.ModelProto, feeds: Sequence[Feed], settings: Settings | None = None
) -> tuple[Quantised, Losses]:
    """`quantised`, and what that loses. The losses are those of the form `qdq`, whose tensors can be looked at."""
    settings = settings or Settings()
    with _working(model, feeds, settings) as work:
        path = work.path
        if settings.format != "qdq":
            path = work.path.with_name("qdq.onnx")
            _quantise(work.simplified, path, feeds, Settings(settings.calibration), work.chosen)
        with _quietly():
            losses = measure(work.simplified, path, feeds)
        return Quantised(work.made, work.products), losses


@dataclass(frozen=True, slots=True)
class _Work:
    simplified: Path
    path: Path
    made: onnx.ModelProto
    chosen: Sequence[str]
    products: tuple[int, int]


@contextmanager
def _working(model: onnx.ModelProto, feeds: Sequence[Feed], settings: Settings) -> Iterator[_Work]:
    """The quantised model, and the files on the way to it, which are there inside the `with`."""
    require_onnxruntime()
    require_float(model)
    if not len(feeds):
        raise InputError("There is nothing to calibrate with: give at least one sample.")
    with temporary() as scratch:
        with _quietly():
            simple = simplified(model, scratch)
        nodes = chosen(simple.graph, excluded(settings.exclude, model.graph, simple.graph))
        all_products = products(simple.graph)
        if not set(all_products).intersection(nodes):
            raise ModelError("The model has no convolution or product with constant weights that may be quantised.")
        source, path = scratch / "float.onnx", scratch / "quantised.onnx"
        onnx.save(simple, source)
        if opset_of(model) < OPSET:
            with _quietly():
                require_same(model, source, feeds[0])
        _quantise(source, path, feeds, settings, nodes)
        counts = len(set(all_products).intersection(nodes)), len(all_products)
        yield _Work(source, path, _as_given(onnx.load(path), model), nodes, counts)


def _as_given(made: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """`made`, with `model`'s names and metadata, and without the domains that ONNX Runtime lists in every file."""
    del made.metadata_props[:]
    made.metadata_props.extend(model.metadata_props)
    made.producer_name, made.graph.name = model.producer_name, model.graph.name
    used = {"", *domains(made.graph)}
    kept = [entry for entry in made.opset_import if entry.domain in used]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    return made


def _quantise(source: Path, path: Path, feeds: Sequence[Feed], settings: Settings, nodes: Sequence[str]) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    methods = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }
    with _quietly():
        quantize_static(
            str(source),
            str(path),
            _Reader(feeds),
            quant_format=QuantFormat.QDQ if settings.format == "qdq" else QuantFormat.QOperator,
            op_types_to_quantize=list(OPERATORS),
            nodes_to_quantize=list(nodes),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=methods[settings.calibration],
            extra_options=dict(_OPTIONS),
        )


class _Reader:
    """Feeds as the calibrator asks for them."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = feeds
        self.set_range(0, len(feeds))

    def __len__(self) -> int:
        return len(self._feeds)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._next, self._end = start_index, end_index

    def get_next(self) -> dict[str, Any] | None:
        if self._next >= self._end:
            return None
        self._next += 1
        return dict(self._feeds[self._next - 1])


def require_onnxruntime() -> None:
    """Raises SubtuneError: it is not installed."""
    try:
        import onnxruntime.quantization  # noqa: F401
    except ImportError as error:
        raise SubtuneError(
            f"Quantising needs ONNX Runtime, which is not here ({error}): pip install 'subtune[ort]'."
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Inside, ONNX Runtime says nothing by itself, and what it raises becomes one sentence."""
    import onnxruntime

    root = logging.getLogger()  # the quantiser's own
    level = root.level
    onnxruntime.set_default_logger_severity(4)
    if not root.isEnabledFor(logging.INFO):
        root.setLevel(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    except SubtuneError:
        raise
    except Exception as error:  # of the runtime's own, of protobuf's, and whatever the quantiser did not foresee
        why = " ".join(str(error).split())[:400] or type(error).__name__
        if type(error).__module__.startswith("onnxruntime"):
            raise InputError(f"ONNX Runtime cannot run the model on what it is calibrated with: {why}.") from error
        raise ModelError(f"ONNX Runtime's quantiser cannot take the model ({type(error).__name__}): {why}.") from error
    finally:
        onnxruntime.set_default_logger_severity(2)
        root.setLevel(level)
