"""`load`: whatever names a model -> the frontend that reads it."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl

import onnx

from subtune.core.errors import ModelError
from subtune.core.tensor_spec import TensorSpec
from subtune.frontends.imported import Imported
from subtune.frontends.onnx.file import OnnxModel, OpenedFile, open_file, read_bytes, read_lent, read_opened, read_proto
from subtune.frontends.onnx.lent import LentModel
from subtune.frontends.onnx.load import load_onnx
from subtune.frontends.onnx.shapes import symbolic
from subtune.frontends.onnx.whole import whole_model
from subtune.frontends.parameters import Parameters
from subtune.frontends.symbolic import SymbolicInput

_ZOO = "zoo:"
_NO_MODEL = "A model is a path, bytes, an onnx.ModelProto or zoo:NAME, not {}."

_RELAY_SUFFIXES = (".relay", ".txt", ".json")
_RELAY_START = re.compile(
    r"\ufeff?\s*(?:(?://[^\n]*|/\*.*?\*/)\s*)*"
    r"(?:#\[version|v0\.0\.\d|def @|type \w+|extern type|free_var %|fn ?[(\[]|"
    r"\{\s*\"(?:root|nodes|attrs|b64ndarrays)\")",
    re.DOTALL,
)
_HEAD = 4096

Shapes = Mapping[str, "Sequence[int] | int"]
Model = str | os.PathLike[str] | bytes | onnx.ModelProto | LentModel | OpenedFile
Frontend = Callable[[Model, Shapes, Parameters], Imported | None]
"""Imports what is of its own format, and gives None for what is not."""


def load(model: Model, shapes: Shapes | None = None, parameters: Parameters | None = None) -> Imported:
    """Import a model.

    Args:
        model: a path to an ONNX file or to Relay's text or JSON, the bytes of one of them, a Relay text itself, an
            `onnx.ModelProto` (never changed), one whose weights are lent (`LentModel`), or `zoo:NAME`, with the
            builder's arguments behind a question mark: `zoo:resnet18?batch=8&dtype=float16`.
        shapes: input name -> its whole shape, or symbol -> its one value; needed for symbolic dimensions.
        parameters: the weights of a Relay model, whose file seldom holds them.
    Raises:
        ModelError: the file cannot be read or is no valid model.
        ShapeError: a dimension has no value, or shapes contradict one another.
        UnsupportedOpsError: all operators that cannot be imported.

    >>> imported = load("zoo:mlp?image=8&batch=2")
    >>> print(*imported.inputs, "->", *imported.outputs)
    input: float32[2, 8, 8, 3] -> output: float32[2, 10]
    >>> load("zoo:mpl")
    Traceback (most recent call last):
    subtune.core.errors.ModelError: the zoo has no model 'mpl' (did you mean mlp?); it has ...
    """
    with _names_decoded():
        attempts = (frontend(model, shapes or {}, parameters or Parameters()) for frontend in FRONTENDS)
        imported = next((found for found in attempts if found is not None), None)
    if imported is None:
        raise ModelError(_NO_MODEL.format(type(model).__name__))
    return imported


def load_whole(model: Model, shapes: Shapes | None = None) -> tuple[onnx.ModelProto, tuple[TensorSpec, ...], str]:
    """An ONNX model as one protobuf with fixed shapes, not imported; its inputs, and its name.

    Args:
        model, shapes: as of `load`.
    Raises:
        ModelError: as `load`, and a model of Relay.
    """
    if is_relay(model):
        raise ModelError("The model is Relay's; this takes ONNX models.")
    with _names_decoded():
        read = None if isinstance(model, LentModel) else _read_onnx(model)
        if read is None:
            raise ModelError(_NO_MODEL.format(type(model).__name__))
        return *whole_model(read, shapes or {}), read.name


def symbolic_inputs(
    model: Model, shapes: Shapes | None = None, parameters: Parameters | None = None
) -> tuple[SymbolicInput, ...]:
    """A model's inputs with what has no size yet as symbols and expressions of them; nothing else is imported.

    Symbols of outputs alone are no inputs' symbols. A Relay parameter whose type only its use tells is left out.

    Args:
        model, shapes, parameters: as of `load`; `shapes` fixes what it names.
    Raises:
        ModelError: the file cannot be read. ShapeError: shapes contradict the model or one another.
    """
    with _names_decoded():
        relay = _relay_of(model)
        if relay is not None:
            from subtune.frontends.relay.load import relay_inputs  # late: as in `_relay`

            text, name = relay
            return relay_inputs(text, shapes or {}, parameters or Parameters(), name)
        read = _read_onnx(model)
        if read is None:
            raise ModelError(_NO_MODEL.format(type(model).__name__))
        return symbolic([one for one in read.proto.graph.input if one.name not in read.weights], shapes or {})


@contextmanager
def _names_decoded() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:  # protobuf checks the encoding of a name only when it is read
        raise ModelError("The model has a name that is not valid UTF-8: the file is damaged.") from error


def _relay(model: Model, shapes: Shapes, parameters: Parameters) -> Imported | None:
    found = _relay_of(model)
    if found is None:
        return None
    from subtune.frontends.relay.load import load_relay  # late: the parser library is for such models only

    text, name = found
    return load_relay(text, shapes, parameters, name)


def _onnx(model: Model, shapes: Shapes, parameters: Parameters) -> Imported | None:
    if parameters:
        raise ModelError("Parameters are for Relay models: an ONNX model holds its own.")
    read = _read_onnx(model)
    return None if read is None else load_onnx(read, shapes)


def _read_onnx(model: Model) -> OnnxModel | None:
    if isinstance(model, onnx.ModelProto):
        return read_proto(model, name=model.graph.name or "model")
    if isinstance(model, LentModel):
        return read_lent(model)
    if isinstance(model, bytes | bytearray | memoryview):
        return read_bytes(bytes(model))
    if isinstance(model, str) and model.startswith(_ZOO):
        proto, name = _build_zoo_model(model)
        return read_proto(proto, name=name)
    opened = opened_once(model)
    return read_opened(opened) if isinstance(opened, OpenedFile) else None


def opened_once(model: Model) -> Model:
    """What `load` may be given again and again without reading an ONNX file each time; it keeps the weights in memory.

    Raises ModelError: the file cannot be read, or is no ONNX model.
    """
    is_path = isinstance(model, os.PathLike) or (isinstance(model, str) and not model.startswith(_ZOO))
    return open_file(Path(os.fspath(model))) if is_path and not is_relay(model) else model  # type: ignore[arg-type]


FRONTENDS: tuple[Frontend, ...] = (
    _relay,
    _onnx,  # the last: it takes every path for a model of its own, and says what is wrong with it
)
"""Asked in this order."""


def is_relay_text(model: object) -> bool:
    """Whether a string is a Relay model itself, not the name of a file."""
    return isinstance(model, str) and bool(_RELAY_START.match(model)) and ("\n" in model or "{" in model)


def is_relay(model: object) -> bool:
    """Whether `load` would read a Relay model."""
    return _relay_of(model) is not None


def _relay_of(model: object) -> tuple[str, str] | None:
    """The text or JSON of a Relay model and its name; None for what is something else, or cannot be read."""
    if is_relay_text(model):
        return str(model), "relay"
    if isinstance(model, bytes | bytearray | memoryview):
        head = bytes(model[:_HEAD])
        return (_decoded(bytes(model), "the model"), "relay") if _RELAY_START.match(_leniently(head)) else None
    if not isinstance(model, str | os.PathLike) or os.fspath(model)[: len(_ZOO)] == _ZOO:
        return None
    path = Path(os.fspath(model))
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            if path.suffix.lower() in _RELAY_SUFFIXES or _RELAY_START.match(_leniently(head)):
                return _decoded(head + file.read(), str(path)), path.stem
    except (OSError, ValueError):  # ValueError: a NUL in the path; the reader of ONNX files says what is wrong
        return None
    return None


def _leniently(head: bytes) -> str:
    return head.decode("utf-8", errors="replace")


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{name!r} is no text (byte {error.start}), so no Relay model.") from error


def _build_zoo_model(text: str) -> tuple[onnx.ModelProto, str]:
    """`zoo:NAME?key=value&...` -> what `subtune.models.build(NAME, key=value, ...)` gives, and NAME."""
    name, _, query = text.removeprefix(_ZOO).partition("?")
    if not name:
        raise ModelError(f"{text!r} names no model: write zoo:NAME, for example zoo:resnet18.")
    arguments: dict[str, int | str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise ModelError(f"{text!r}: write the arguments as zoo:{name}?key=value&key=value.") from error
    for key, value in pairs:
        arguments[key] = int(value) if value.isascii() and value.isdecimal() else value

    from subtune import models  # late: numpy-heavy builders that most imports do not need

    try:
        inspect.signature(models.build).bind(name, **arguments)
    except TypeError as error:
        raise ModelError(f"{text!r}: {error}.") from error
    return models.build(name, **arguments), name
