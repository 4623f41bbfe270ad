"""Ops that the partition leaves to what reads them, and bytes that it leaves narrow."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx

from subtune.core.graph import Kind, OpNode, Origin
from subtune.passes.opkind import SORTS
from subtune.passes.partition_draft import Draft, Drafts
from subtune.passes.partition_rules import CASTS, is_cheap, is_dequantizing


def leave_what_is_sorted(dag: nx.DiGraph, results: set[str]) -> None:
    """Importers' loops over single elements, and casts, that nothing reads but what sorts: it computes them itself."""
    left: set[str] = set()
    for name in reversed(list(nx.topological_sort(dag))):
        op, users = dag.nodes[name]["op"], set(dag.successors(name))
        is_simple = op.kind is Kind.ELEMENTWISE and len(op.inputs) == 1 and (op.op.startswith("tir.") or op.op in CASTS)
        if (
            is_simple
            and users
            and name not in results
            and all(u in left or dag.nodes[u]["op"].op in SORTS for u in users)
        ):
            left.add(name)
    for name in left:
        dag.nodes[name]["op"] = replace(dag.nodes[name]["op"], kind=Kind.OPAQUE)


def leave_bytes(drafts: Drafts, draft: Draft, region: set[str], taken: set[str]) -> None:
    """Give back the floats that nothing of the tile reads: whoever reads them reads the bytes that they are made of."""
    for name in sorted(taken, key=drafts.rank.__getitem__, reverse=True):
        op = drafts.op(name)
        if _is_of_bytes(drafts, op) and not region & set(drafts.dag.successors(name)) and not drafts.is_result(name):
            region.discard(name)
            taken.discard(name)
            draft.refused[name] = f"{name} widens bytes: done where it is read, it costs fewer of them"


def _is_of_bytes(drafts: Drafts, op: OpNode) -> bool:
    """Whether `op` widens bytes, perhaps with cheap steps behind that read nothing but numbers."""
    if is_dequantizing(op):
        return True
    tensors = [value for value in op.inputs if value.tensor.numel > 1]
    if not is_cheap(op) or op.output.dtype != "float32" or len(tensors) != 1 or tensors[0].origin is not Origin.OP:
        return False
    return _is_of_bytes(drafts, drafts.op(tensors[0].source))
