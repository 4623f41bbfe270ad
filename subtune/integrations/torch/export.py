"""A module or an exported program -> what the importer reads and how its calls look: torch.export, then torch.onnx."""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature, InputKind, OutputKind, TensorArgument

from subtune.core.errors import ModelError, ShapeError
from subtune.frontends import LentModel
from subtune.frontends.onnx.reference import integer_limits
from subtune.integrations.torch.attention import in_products
from subtune.integrations.torch.dims import ranges_of, renamed
from subtune.integrations.torch.eager import Eager
from subtune.integrations.torch.onnx_model import lent, to_onnx
from subtune.integrations.torch.program import functional, tensors_only
from subtune.integrations.torch.signature import Computed, Fixed, Passed, Signature, output_names
from subtune.integrations.torch.transformers import make_results_known

_MUTATIONS = {
    OutputKind.BUFFER_MUTATION: "buffer",
    OutputKind.PARAMETER_MUTATION: "parameter",
    OutputKind.USER_INPUT_MUTATION: "input",
}
_MOST = 300
"""Characters of a message of PyTorch's."""


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """Attributes:
    model: for `subtune.frontends.load`; its large weights are the module's own memory.
    signature: how arguments become its inputs, and its outputs a result.
    dynamic: symbol -> its values, of the dimensions that are not fixed.
    """

    model: LentModel
    signature: Signature
    dynamic: Mapping[str, range]


def export_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any = None,
    bounds: Mapping[str, Any] | None = None,
) -> Exported:
    """The module at these arguments.

    Args:
        dynamic_shapes: as of `torch.export.export`.
        bounds: as of `export_program`.
    Raises:
        ModelError: the module is in training mode, torch.export or torch.onnx refuses it, or it changes its state.
    """
    if module.training:
        raise ModelError(
            f"{type(module).__name__} is in training mode, in which dropout and batch normalisation are other "
            "functions: call its eval() first."
        )
    name = type(module).__name__
    with quiet(), torch.no_grad():
        try:
            make_results_known(module, args, kwargs)
            program = torch.export.export(module, tuple(args), dict(kwargs), dynamic_shapes=dynamic_shapes)
        except Exception as e:  # whatever the module's own code, or PyTorch's, raises
            raise ModelError(f"torch.export refuses {name}: {said(e)}.") from e
    names = renamed(program, module, args, kwargs, dynamic_shapes)
    return export_program(program, module, names, bounds)


def export_program(
    program: ExportedProgram,
    module: torch.nn.Module | None = None,
    names: Mapping[str, str] | None = None,
    bounds: Mapping[str, Any] | None = None,
) -> Exported:
    """An exported program.

    Args:
        module: what it was exported from, to compare with; None: the program itself, run by PyTorch.
        names: PyTorch's symbols -> what they are called.
        bounds: the values of dimensions that a user declares, for those that the program leaves without a bound.
    Raises:
        ModelError: torch.onnx refuses it, it changes its state, or nothing in it is computed.
        ShapeError: a dimension has no upper bound.
    """
    with quiet(), torch.no_grad():
        program = functional(program)
    _check(program)
    signature = _signature(program, module)
    if not any(isinstance(one, Computed) for one in signature.results):
        raise ModelError("the model computes no tensor: each result is an argument, a weight or a constant.")
    name = type(module).__name__ if module is not None else "ExportedProgram"
    with quiet(), torch.no_grad():
        try:
            onnx_program = to_onnx(in_products(tensors_only(program)))
        except Exception as e:  # its errors share no public base
            raise ModelError(f"torch.onnx cannot write {name} as ONNX: {said(e)}.") from e
    names = names or {}
    model = lent(onnx_program, name, signature.outputs, names)
    eager = Eager(module if module is not None else program.module(), signature, integer_limits(model.proto))
    return Exported(replace(model, reference=eager), signature, ranges_of(program, names, bounds or {}))


def _check(program: ExportedProgram) -> None:
    for spec in program.graph_signature.output_specs:
        if what := _MUTATIONS.get(spec.kind):
            raise ModelError(
                f"the model changes its {what} {spec.target!r} as it runs; a compiled model has no state: give it as "
                "an argument and return what it becomes."
            )
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise ModelError(f"the model has a {spec.kind.name.lower().replace('_', ' ')}: export it for inference.")
        if not isinstance(spec.arg, TensorArgument | ConstantArgument):
            raise ShapeError(
                "the model returns a size that varies with its arguments' shapes; return tensors only, or fix them."
            )
    for given in program.graph_signature.input_specs:
        is_user = given.kind is InputKind.USER_INPUT
        if is_user and not isinstance(given.arg, TensorArgument | ConstantArgument):
            raise ShapeError(f"the argument {getattr(given.arg, 'name', '?')!r} is a number that varies: fix it.")


def _signature(program: ExportedProgram, module: torch.nn.Module | None) -> Signature:
    of = program.graph_signature
    user = [one.arg for one in of.input_specs if one.kind is InputKind.USER_INPUT]
    arguments = tuple(Fixed(one.value) if isinstance(one, ConstantArgument) else Computed(one.name) for one in user)
    places = {one.name: number for number, one in enumerate(user) if isinstance(one, TensorArgument)}
    held = _weights(program, of)
    spec = program.call_spec
    assert spec.in_spec is not None
    assert spec.out_spec is not None
    paths = output_names(spec.out_spec, taken=places)
    called: dict[str, str] = {}  # a tensor that comes twice is computed once
    results: list[Computed | Passed | Fixed] = []
    for path, one in zip(paths, (output.arg for output in of.output_specs), strict=True):
        if isinstance(one, ConstantArgument):
            results.append(Fixed(one.value))
        elif one.name in places:
            results.append(Passed(places[one.name]))
        elif one.name in held:
            results.append(Fixed(held[one.name]))
        else:
            results.append(Computed(called.setdefault(one.name, path)))
    names = program.module_call_graph[0].signature.forward_arg_names if program.module_call_graph else None
    return Signature(arguments, tuple(results), spec.in_spec, spec.out_spec, _parameters(module) or tuple(names or ()))


def _parameters(module: torch.nn.Module | None) -> tuple[str, ...]:
    if module is None:
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(one.name for one in inspect.signature(module.forward).parameters.values() if one.kind in kinds)


def _weights(program: ExportedProgram, signature: ExportGraphSignature) -> dict[str, torch.Tensor]:
    """What the graph takes beside the arguments, by the names there."""
    known = {**program.constants, **program.state_dict}
    return {
        one.arg.name: known[one.target]
        for one in signature.input_specs
        if isinstance(one.arg, TensorArgument)
        and one.target is not None
        and isinstance(known.get(one.target), torch.Tensor)
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What PyTorch logs and warns of on the way to ONNX stays unsaid: what matters is an error."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [one.level for one in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in loggers:
            one.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for one, level in zip(loggers, levels, strict=True):
                one.setLevel(level)


def said(error: BaseException) -> str:
    """The first sentence of the innermost of PyTorch's errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()]
    text = next((line for line in lines if line), type(error).__name__)
    return (text if len(text) <= _MOST else text[:_MOST] + " ...").rstrip(" .:")


def as_arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tuple or list is by position, a mapping by name, a tensor alone the only one; None: the model takes nothing."""
    if example_inputs is None:
        return (), {}
    if isinstance(example_inputs, Mapping):
        if not all(isinstance(name, str) for name in example_inputs):
            raise ModelError("example_inputs is a mapping whose keys are no names: give the arguments by their names.")
        return (), dict(example_inputs)
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, list | tuple):
        return tuple(example_inputs), {}
    raise ModelError(
        f"example_inputs is of type {type(example_inputs).__name__}: give a tuple of arguments, or a dictionary of "
        "them by name."
    )
