"""A graph's names and order: every node named, every value defined once and before its use, no cycles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import onnx

from subtune.core.errors import ModelError


def label(node: onnx.NodeProto) -> str:
    """How messages name a node; `name_nodes` has given every node a name."""
    return f"{qualified_op(node)} {node.name!r}"


def qualified_op(node: onnx.NodeProto) -> str:
    """ "Conv", or "com.microsoft.FusedConv" outside of ONNX's own domain."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes: branches, loop bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(
    graph: onnx.GraphProto, into: Callable[[onnx.NodeProto], bool] = lambda _: True
) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and, behind each, those of its subgraphs (`into` says of which)."""
    for node in graph.node:
        yield node
        for subgraph in subgraphs(node) if into(node) else ():
            yield from all_nodes(subgraph, into)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give every unnamed node the name of its first output, in place: C++ messages then name it as well."""
    for node in all_nodes(graph):
        if not node.name:
            node.name = next((name for name in node.output if name), "without outputs")


def order_nodes(graph: onnx.GraphProto, outer: frozenset[str] = frozenset()) -> None:
    """Check a graph's names and sort its nodes (and its subgraphs') topologically, in place; stable.

    Args:
        outer: the values visible from the graphs around it.
    Raises ModelError: a value that is defined twice, or never; a cycle, with its nodes.
    """
    producers = _producers(graph)
    given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    depends: dict[int, set[int]] = {}
    for index, node in enumerate(graph.node):
        used = [name for name in node.input if name]
        used += [name for subgraph in subgraphs(node) for name in _free_names(subgraph)]
        for name in used:
            if name not in producers and name not in given and name not in outer:
                raise ModelError(f"Node {label(node)} uses the value {name!r}, which nothing in the model defines.")
        depends[index] = {producers[name] for name in used if name in producers}
    for output in graph.output:
        if output.name not in producers and output.name not in given and output.name not in outer:
            raise ModelError(f"The model's output {output.name!r} is defined by no node.")
    if any(before >= index for index, befores in depends.items() for before in befores):
        nodes = [graph.node[index] for index in _sorted(depends, graph)]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
    visible = outer | given | producers.keys()
    for node in graph.node:
        for subgraph in subgraphs(node):
            order_nodes(subgraph, visible)


def _producers(graph: onnx.GraphProto) -> Mapping[str, int]:
    """Value -> index of the node that defines it. Raises ModelError: a name that is defined twice."""
    inputs: set[str] = set()
    for value in graph.input:
        if not value.name:
            raise ModelError("The model has an input without a name.")
        if value.name in inputs:
            raise ModelError(f"The model has two inputs named {value.name!r}.")
        inputs.add(value.name)
    inputs |= {tensor.name for tensor in graph.initializer}
    producers: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in node.output:
            if not name:
                continue
            if name in producers:
                both = f"{label(graph.node[producers[name]])} and {label(node)}"
                raise ModelError(f"Two nodes define the value {name!r}: {both}.")
            if name in inputs:
                raise ModelError(f"Node {label(node)} defines {name!r}, which is an input or an initialiser already.")
            producers[name] = index
    return producers


def _free_names(graph: onnx.GraphProto) -> set[str]:
    """The values that a subgraph takes from the graphs around it."""
    used = {name for node in graph.node for name in node.input if name}
    used |= {name for node in graph.node for subgraph in subgraphs(node) for name in _free_names(subgraph)}
    used |= {output.name for output in graph.output}
    own = {name for node in graph.node for name in node.output}
    own |= {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return used - own


def _sorted(depends: Mapping[int, set[int]], graph: onnx.GraphProto) -> list[int]:
    """The nodes' indices in topological order. Raises ModelError: a cycle."""
    try:
        return list(TopologicalSorter(depends).static_order())
    except CycleError as error:
        cycle = error.args[1]
        shown = [label(graph.node[index]) for index in cycle]
        if len(shown) > 9:
            shown = [*shown[:8], f"({len(cycle) - 9} more)", shown[-1]]
        raise ModelError(f"The model's graph has a cycle: {' -> '.join(shown)}.") from error


_INDEXING = frozenset({"Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"})


def unchecked_indices(graph: onnx.GraphProto, inputs: Iterable[str]) -> tuple[str, ...]:
    """The nodes that index by values computed from the model's inputs, and not only from their shapes."""
    varying = set(inputs)
    found = []
    for node in graph.node:
        if node.op_type in _INDEXING and not node.domain and node.input[1] in varying:
            found.append(node.name)
        if node.op_type not in ("Shape", "Size") and any(name in varying for name in node.input):
            varying.update(name for name in node.output if name)
    return tuple(found)
