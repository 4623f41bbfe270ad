"""Which nodes are quantised: products with constant weights, and what carries bytes between them.

ONNX Runtime's quantiser would take every operator it has a kernel for. That costs accuracy where no integer kernel
gains anything: in the pieces of a norm or a GELU, or where an attention mask of -10000 is added to scores. So an
operator between products is taken only if a product reads its result in the end, by way of such operators alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import onnx

from subtune.core.errors import ModelError

PRODUCTS = ("Conv", "Gemm", "MatMul")
MOVERS = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze")
CARRIERS = ("Add", "Concat", "MaxPool", "GlobalAveragePool", "Pad", "Resize", "Slice", "Split", *MOVERS)
AVERAGES = ("AveragePool",)
"""Read bytes if a product reads the result, but are not quantised as nodes: the quantiser would give the result the
operand's scale. The mean of two or four integers then lies in the middle of two others time and again, and any rounding
error decides which it becomes."""
ACTIVATIONS = ("Relu", "Clip")
"""Become the range of what they read: they follow it, whoever reads them."""
OPERATORS = (*PRODUCTS, *CARRIERS, *ACTIVATIONS)


def products(graph: onnx.GraphProto) -> list[str]:
    """The names of the nodes that multiply by constant weights, in their order."""
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    return [node.name for node in graph.node if _is_product(node, ranks)]


def chosen(graph: onnx.GraphProto, exclude: frozenset[str] = frozenset()) -> list[str]:
    """The names of the nodes to quantise, in their order. Nodes are sorted and have names of their own.

    Args:
        exclude: names of nodes that stay in float.
    """
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    free = [node for node in graph.node if node.name not in exclude and not node.domain]
    taken, read = set(), set[str]()
    for node in reversed(free):
        if _is_product(node, ranks):
            taken.add(node.name)
            read.add(node.input[0])
        elif read.intersection(node.output) and (node.op_type in AVERAGES or _carries(node, ranks)):
            read.update(name for name in node.input if name)
            if node.op_type not in AVERAGES:
                taken.add(node.name)
    made = {name for node in free if node.name in taken for name in node.output}
    taken |= {node.name for node in free if node.op_type in ACTIVATIONS and node.input[0] in made}
    return [node.name for node in free if node.name in taken]


def _is_product(node: onnx.NodeProto, ranks: Mapping[str, int]) -> bool:
    """Whether the node multiplies what varies by constant weights, and adds nothing but constants.

    Args:
        ranks: of the constants, by name.
    """
    if node.domain or node.op_type not in PRODUCTS or node.input[0] in ranks:
        return False
    if any(name not in ranks for name in node.input[1:] if name):
        return False
    return node.op_type != "MatMul" or ranks[node.input[1]] == 2  # channels of others are not where the quantiser looks


def _carries(node: onnx.NodeProto, ranks: Mapping[str, int]) -> bool:
    """Whether the node has a result of bytes where its operands are; a constant would be rounded to 8 bits for it."""
    if node.domain or node.op_type not in (*CARRIERS, *ACTIVATIONS):
        return False
    if node.op_type == "Resize":  # what lies between two pixels is no byte of the input
        return all(one.s == b"nearest" for one in node.attribute if one.name == "mode")
    return node.op_type not in ("Add", "Concat") or ranks.keys().isdisjoint(node.input)


def excluded(names: Sequence[str], given: onnx.GraphProto, simplified: onnx.GraphProto) -> frozenset[str]:
    """The nodes of the simplified graph that the user's names mean.

    Args:
        names: of nodes, or of their results, in either graph.

    Raises ModelError: a name of nothing, or of what the simplified graph has as a part of something else.
    """
    found: set[str] = set()
    for name in names:
        meant = [node for graph in (given, simplified) for node in graph.node if name in (node.name, *node.output)]
        if not meant:
            known = [node.name or node.output[0] for node in given.node]
            close = difflib.get_close_matches(name, known, n=3)
            raise ModelError(
                f"The model has no node {name!r} to exclude"
                + (f" (did you mean {' or '.join(close)}?)." if close else ".")
            )
        # A fused node is called after the first of its parts, and gives the result of the last.
        results = {result for node in meant for result in node.output}
        own = {node.name for node in meant} - {""}
        nodes = {
            node.name
            for node in simplified.node
            if node.name.split("/MatMulAddFusion")[0] in own or results.intersection(node.output)
        }
        if not nodes:
            raise ModelError(f"The node {name!r} becomes a part of another before: exclude what it follows instead.")
        found |= nodes
    return frozenset(found)
