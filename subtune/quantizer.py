"""One float model from its file to its quantised file. The work is done by `subtune.quantization`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from subtune.core.errors import InputError, SubtuneError
from subtune.core.scratch import scratch
from subtune.frontends import load_whole
from subtune.models.catalog import ARGUMENTS_KEY, MODEL_KEY
from subtune.models.examples import Examples
from subtune.quantization.calibration import Data, Feed, feeds_of, files_of
from subtune.quantization.settings import Settings
from subtune.quantization.static import quantised_and_measured, require_onnxruntime
from subtune.report.quantize_report import QuantizeReport

_RANDOM = (
    "calibrated on random inputs: their ranges are not those of real data, so neither the losses nor the accuracy are "
    "representative"
)


def quantize(
    model: Any,
    output: str | Path | None = None,
    *,
    data: Data = None,
    random: int | None = None,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    calibration: str = "minmax",
    exclude: Sequence[str] | str = (),
    format: str = "qdq",
) -> QuantizeReport:
    """Make an ONNX model whose products are of 8 bits, with ONNX Runtime's static quantiser.

    Convolutions and products with constant weights get integer operands: unsigned activations with a zero point, signed
    weights with a scale for each channel. Everything else stays in float, but what carries bytes between them.

    Args:
        model: a path, bytes, an `onnx.ModelProto` or `zoo:NAME`, of float32.
        output: the file to write; None leaves the model in the report alone.
        data: what the model sees in use: name -> array, the path of an `.npz` of such arrays, that of a directory of
            them, or a sequence of these. An input of shape (B, ...) takes (samples, B, ...) or (samples * B, ...).
        random: calibrate on so many seeded random inputs instead.
        shapes: shapes of inputs, or values of symbols; needed for symbolic dimensions. The result has fixed shapes.
        calibration: `minmax`, `entropy` or `percentile`.
        exclude: names of nodes, or of their results, that stay in float.
        format: `qdq`, or `qoperator`, which has operators of ONNX Runtime's own.

    Raises:
        SubtuneError: ONNX Runtime is not installed; the file cannot be written.
        ModelError: no such model or node, not float32, quantised already, nothing to quantise.
        InputError: data that is not there, or does not fit the model's inputs.

    >>> import numpy as np, subtune
    >>> images = np.random.default_rng(0).standard_normal((16, 8, 8, 3)).astype("float32")
    >>> report = subtune.quantize("zoo:mlp?image=8&batch=2", data={"input": images})
    >>> report.samples, report.products
    (8, (3, 3))
    >>> outputs = subtune.compile(report.model, tune=False).run({"input": images[:2]})
    """
    started = time.monotonic()
    settings = Settings(calibration, (exclude,) if isinstance(exclude, str) else tuple(exclude), format)
    require_onnxruntime()
    _require_one(data, random)
    path = None if output is None else _checked(Path(output), model, data)
    proto, specs, name = load_whole(model, shapes)
    _forget_the_zoo(proto)
    feeds: Sequence[Feed] = feeds_of(data, specs) if random is None else Examples(proto, random)
    made, losses = quantised_and_measured(proto, feeds, settings)
    if path is not None:
        _write(path, made.model)
    sizes = proto.ByteSize(), made.model.ByteSize()
    about = (made.model, name, str(path or ""), settings, len(feeds), made.products, sizes)
    return QuantizeReport(*about, losses, time.monotonic() - started, (_RANDOM,) if random else ())


def _require_one(data: Data, random: int | None) -> None:
    if data is None and random is None:
        raise InputError(
            "Quantising needs samples of what the model sees in use (--data calib.npz): --random 16 takes random "
            "inputs, but the accuracy is then not representative."
        )
    if data is not None and random is not None:
        raise InputError("Calibrate on data or on random inputs, not on both.")
    if random is not None and (not isinstance(random, int) or isinstance(random, bool) or random < 1):
        raise InputError(f"The number of random inputs is {random!r}, not a whole number above zero.")


def _checked(path: Path, model: Any, data: Data) -> Path:
    """The path. Raises SubtuneError: it cannot be written, or is what is read."""
    try:
        read = [Path(model)] if isinstance(model, str | os.PathLike) else []
        for one in (*read, *files_of(data)):
            if one.exists() and path.exists() and path.samefile(one):
                raise SubtuneError(f"{path} is read and cannot be written as well: name another file with -o.")
        if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            why = "it is a directory" if path.is_dir() else f"{path.parent} is no directory to write in"
            raise SubtuneError(f"cannot write {path}: {why}; choose another name")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise SubtuneError(f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error
    return path


def _write(path: Path, model: onnx.ModelProto) -> None:
    """All of the file, or nothing."""
    try:
        place = scratch(f".{path.name}.", ".subtune-new", path.parent)
        try:
            (place.path / path.name).write_bytes(model.SerializeToString())
            (place.path / path.name).replace(path)
        finally:
            place.remove()
    except OSError as error:
        raise SubtuneError(f"cannot write {path}: {error.strerror or error}") from error


def _forget_the_zoo(model: onnx.ModelProto) -> None:
    """Take its name for the model out of the metadata, in place: what is quantised is another model."""
    kept = [entry for entry in model.metadata_props if entry.key not in (MODEL_KEY, ARGUMENTS_KEY)]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
