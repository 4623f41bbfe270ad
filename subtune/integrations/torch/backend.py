"""The backend "subtune" of `torch.compile`: each graph is tuned when it is first called, or run by PyTorch as it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._decomp import get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import CompileContext, TracingContext

from subtune.integrations.torch.graph import Graph
from subtune.integrations.torch.settings import Settings

_ATEN = torch.ops.aten
_IN_TRAINING = [_ATEN._native_batch_norm_legit_functional, _ATEN._native_batch_norm_legit, _ATEN.native_dropout]
"""What torch.onnx writes as if it were for inference (2.14): made of other operators first."""


class FallbackWarning(UserWarning):
    """A graph runs in eager PyTorch; the text says which, and why."""


def subtune(module: fx.GraphModule, example_inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """What `torch.compile(model, backend="subtune", options={...})` calls for each graph that it finds.

    Functions of tensors that change no state come out of PyTorch's AOT compiler, with the weights as arguments. The
    first call of each tunes it, for the weights that it has then, and at the shapes that it has.

    Raises SubtuneError: an option is unknown.
    """
    options: Mapping[str, Any] | None = given.get("options")
    settings = Settings.of(options)
    name = _name(module)
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs):
        fell_back(name, "its results need gradients; call the model under torch.no_grad() or torch.inference_mode()")
        return module.forward
    compiler = partial(_lazily, settings, name)
    decompositions: Any = get_decompositions(_IN_TRAINING)
    backend = aot_autograd(fw_compiler=compiler, decompositions=decompositions)
    compiled: Callable[..., Any] = backend(module, example_inputs)
    return compiled


def fell_back(name: str, reason: str) -> None:
    """Say that a graph is run by PyTorch."""
    warnings.warn(f"subtune leaves the {name} to eager PyTorch: {reason}", FallbackWarning, stacklevel=3)


def _lazily(settings: Settings, name: str, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """The graph of ATen operators as a function of its arguments, a list of which PyTorch gives away."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    weights: set[int] = set()
    if metadata is not None:
        changed = {place for place, one in enumerate(metadata.input_info) if one.mutates_data or one.mutates_metadata}
        weights = set(metadata.static_input_indices or ()) - changed
    graph = Graph(module, inputs, frozenset(weights), settings, partial(fell_back, name))
    boxed: Callable[..., Any] = make_boxed_func(graph)
    return boxed


def _name(module: fx.GraphModule) -> str:
    """A graph as a user may find it: its number, where it begins, and how large it is."""
    number = CompileContext.current_compile_id()
    calls = [node for node in module.graph.nodes if node.op.startswith("call_")]
    where = next((place for node in calls if (place := _place(node.meta.get("stack_trace") or ""))), "")
    return f"graph {number if number is not None else ''} ({len(calls)} operators{where})".replace("  ", " ")


def _place(trace: str) -> str:
    """` from file:line` of the last line of a traceback that names one."""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    if not lines:
        return ""
    _, file, rest = lines[-1].split('"', 2)
    return f" from {file.rsplit('/', 1)[-1]}:{rest.removeprefix(', line ').split(',')[0]}"
