"""Find, describe and build the zoo's models by name."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from subtune.core.errors import ModelError
from subtune.models.examples import Examples

if TYPE_CHECKING:
    import onnx

DTYPES = ("float32", "float16")
MODEL_KEY, ARGUMENTS_KEY = "subtune.model", "subtune.arguments"
"""Entries of a built file's metadata: the model's name, and all arguments of its `build` as JSON."""

# Each model's reduced build: every op pattern of the full one, at a size that compiles and runs in moments.
# Squeezenet's image is one where the poolings' rounding up matters.
_REDUCED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "bert": {"layers": 2, "hidden": 64, "heads": 4, "seq": 16, "vocab": 100, "positions": 32},
        "convnext_tiny": {"image": 64, "width": 0.125, "classes": 40},
        "efficientnet_lite0": {"image": 64, "width": 0.25, "classes": 40},
        "gpt2": {"layers": 2, "hidden": 64, "heads": 4, "seq": 16, "context": 32},
        "lstm": {"seq": 8, "features": 12, "hidden": 16},
        "mlp": {"batch": 4, "image": 16, "hidden": 32},
        "mobilenet_v2": {"image": 64, "width": 0.25, "classes": 40},
        "resnet18": {"image": 64, "width": 0.25, "classes": 40},
        "resnet50": {"image": 64, "width": 0.125, "classes": 40},
        "squeezenet": {"image": 72, "width": 0.25, "classes": 40},
        "unet": {"image": 32, "base": 8, "levels": 2},
        "vgg16": {"image": 32, "width": 0.125, "classes": 40},
        "vit": {"layers": 2, "hidden": 48, "heads": 3, "image": 32, "patch": 8, "classes": 40},
    }
)


_INT8 = "-int8"
_NOT_QUANTISED = ("lstm",)
"""Nearly all of its weights are those of LSTM nodes, which the quantiser leaves in float."""
_SAMPLES = 8
"""That quantised models are calibrated on: example inputs of the seeds 0, 1, ..."""


def names() -> tuple[str, ...]:
    """Names of all float models, sorted."""
    return tuple(sorted(_REDUCED))


def quantised_names() -> tuple[str, ...]:
    """Names of the models that are made of float ones by quantising, sorted; building them takes ONNX Runtime."""
    return tuple(f"{name}{_INT8}" for name in names() if name not in _NOT_QUANTISED)


def describe(name: str) -> str:
    """One line about the model: the first line of its module's docstring, read without importing the module.

    Raises:
        ModelError: the zoo has no such model.
    """
    _require_known(name)
    if _is_quantised(name):
        return f"{_float_name(name)} with products of 8 bits, calibrated on {_SAMPLES} seeded example inputs."
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring, f"models/{name}.py has no docstring"
    return docstring.splitlines()[0]


def build(name: str, **kwargs: Any) -> onnx.ModelProto:
    """Build the model; `kwargs` override the defaults of the `build` function of its module.

    Every model takes `batch` and `dtype` ("float32" or "float16": type of the weights and of the float inputs
    and outputs). The weights depend on neither, float16 ones being the float32 ones rounded. The file's metadata
    says the name and the arguments (MODEL_KEY, ARGUMENTS_KEY).

    `NAME-int8` is the float32 model quantised, which takes seconds. Its scales follow from the example inputs, so they
    depend on the batch, and in their last bits on ONNX Runtime's version and the processor.

    Raises:
        ModelError: unknown name, unsupported keyword argument, or a value out of range.
        SubtuneError: a quantised model, and ONNX Runtime is not installed.
    """
    _require_known(name)
    function = importlib.import_module(f"subtune.models.{_float_name(name)}").build
    parameters = inspect.signature(function).parameters
    for key, value in kwargs.items():
        if key not in parameters:
            supported = ", ".join(parameters)
            raise ModelError(f"zoo model {name} has no argument {key!r}{_close(key, parameters)}; it takes {supported}")
        _require_fits(name, key, value, parameters[key].default)
    given = {key: type(p.default)(kwargs.get(key, p.default)) for key, p in parameters.items()}
    if _is_quantised(name) and given["dtype"] != "float32":
        raise ModelError(f"zoo model {name}: dtype={given['dtype']!r} is not supported; it is made of float32")
    model: onnx.ModelProto = function(**given)
    model = _quantised(model) if _is_quantised(name) else model
    for key, value in ((MODEL_KEY, name), (ARGUMENTS_KEY, json.dumps(given))):
        model.metadata_props.add(key=key, value=value)
    return model


def reduced(name: str, **kwargs: Any) -> onnx.ModelProto:
    """Build the small version used by the regression tests; `kwargs` as in `build`, over the reduced sizes.

    Raises:
        ModelError: as `build`.
    """
    _require_known(name)
    return build(name, **{**_REDUCED[_float_name(name)], **kwargs})


def _is_quantised(name: str) -> bool:
    return name.endswith(_INT8)


def _float_name(name: str) -> str:
    return name.removesuffix(_INT8)


def _quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    from subtune.quantization.static import quantised

    return quantised(model, Examples(model, _SAMPLES)).model


def _require_known(name: str) -> None:
    known = (*names(), *quantised_names())
    if name not in known:
        raise ModelError(
            f"the zoo has no model {name!r}{_close(name, known)}; it has {', '.join(names())}, and of all but "
            f"{', '.join(_NOT_QUANTISED)} NAME{_INT8}"
        )


def _close(word: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word, known, n=3)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""


def _require_fits(name: str, key: str, value: Any, default: Any) -> None:
    """Raise unless `value` has the type of the default and, if a number, is above zero."""
    where = f"zoo model {name}: {key}={value!r}"
    if key == "dtype":
        if value not in DTYPES:
            raise ModelError(f"{where} is not supported; use {' or '.join(DTYPES)}")
        return
    accepted = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, accepted) or isinstance(value, bool) != isinstance(default, bool):
        raise ModelError(f"{where} must be of type {type(default).__name__}, such as the default {default!r}")
    # `not >` rather than `<=`, so that a NaN is refused as well
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 < value < float("inf"):
        raise ModelError(f"{where} must be a finite number above zero")
