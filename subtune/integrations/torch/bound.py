"""A graph of ATen operators with its weights bound: a module of what is left of its arguments, which is exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from subtune.integrations.torch.attention import restore_attention
from subtune.integrations.torch.export import Exported, export_module
from subtune.integrations.torch.signature import Computed, Fixed, Passed, Signature


class BoundGraph(torch.nn.Module):
    """Args:
    graph: a function that gives a list or tuple.
    given, weights: the places of its arguments that `forward` takes, and of those that are bound to `tensors`.
    """

    def __init__(
        self, graph: fx.GraphModule, given: Sequence[int], weights: Sequence[int], tensors: Sequence[torch.Tensor]
    ) -> None:
        super().__init__()
        self.graph, constants = _exportable(graph)
        self._constants = tuple(f"constant_{number}" for number in range(len(constants)))
        for name, constant in zip(self._constants, constants, strict=True):
            self.register_buffer(name, constant)
        self._given, self._places = tuple(given), tuple(weights)
        for place, tensor in zip(weights, tensors, strict=True):
            self.register_buffer(f"weight_{place}", tensor.detach())

    def forward(self, *given: Any) -> tuple[Any, ...]:
        arguments = dict(zip(self._given, given, strict=True))
        arguments |= {place: getattr(self, f"weight_{place}") for place in self._places}
        constants = (getattr(self, name) for name in self._constants)
        return tuple(self.graph(*(arguments[place] for place in range(len(arguments))), *constants))


def _exportable(module: fx.GraphModule) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """The graph as torch.export and torch.onnx take it, and its constant tensors, now its last arguments: an export
    loses those of a module inside another.
    """
    graph = fx.Graph()
    output = graph.graph_copy(module.graph, {}, return_output_node=True)
    assert isinstance(output, tuple)
    made = graph.output(output[0])
    made.meta = dict(output[1].meta)
    last = next(node for node in graph.nodes if node.op != "placeholder")
    constants: list[torch.Tensor] = []
    for node in graph.find_nodes(op="get_attr"):
        value = getattr(module, node.target, None)
        if isinstance(value, torch.Tensor):
            with graph.inserting_before(last):
                argument = graph.placeholder(f"constant_{len(constants)}")
            node.replace_all_uses_with(argument)
            constants.append(value.detach())
            if node is last:
                last = node.next
            graph.erase_node(node)
    restore_attention(graph)
    return fx.GraphModule(module, graph), constants


def exported_graph(
    graph: fx.GraphModule,
    given: Sequence[Any],
    weights: Sequence[torch.Tensor],
    places: tuple[Sequence[int], Sequence[int]],
) -> Exported:
    """The graph at these arguments.

    Args:
        places: of `given` and of `weights` among the graph's arguments, which results that are passed refer to.
    Raises ModelError: as `export_module`.
    """
    module = BoundGraph(graph, *places, weights).eval()
    exported = export_module(module, given, {})
    return replace(exported, signature=_by_place(exported.signature, places, weights))


def _by_place(
    signature: Signature, places: tuple[Sequence[int], Sequence[int]], weights: Sequence[torch.Tensor]
) -> Signature:
    """With the graph's own numbers for what it passes through, weights among it."""
    of_given, of_weights = places
    by_address = {(one.data_ptr(), one.shape): place for one, place in zip(weights, of_weights, strict=True)}
    results: list[Computed | Passed | Fixed] = []
    for one in signature.results:
        if isinstance(one, Passed):
            one = Passed(of_given[one.argument])
        elif isinstance(one, Fixed) and isinstance(one.value, torch.Tensor):
            place = by_address.get((one.value.data_ptr(), one.value.shape))
            one = one if place is None else Passed(place)
        results.append(one)
    return replace(signature, results=tuple(results))
