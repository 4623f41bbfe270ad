"""The four ways to show a partition say the same, and say it in their format."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune.core.graph import InFloats, PartitionGraph
from subtune.passes.extract import call_names, extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.report.inspect import Row, rows, to_dot, to_json, to_svg, to_text

F32 = "float32"
Shown = tuple[PartitionGraph, tuple[Row, ...]]


def const(*shape: int) -> Any:
    return relax.const(np.ones(shape, F32), F32)


@pytest.fixture(scope="module")
def shown() -> Shown:
    """A residual pair of dense layers, a reshape, a sort."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), F32))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(op.nn.relu(bb.emit(op.add(bb.emit(op.matmul(x, const(8, 8))), const(8)))))
            z = bb.emit(op.add(bb.emit(op.matmul(y, const(8, 8))), y))
            result = bb.emit_output(bb.emit(op.sort(bb.emit(op.reshape(z, (2, 16))))))
        bb.emit_func_output(result)
    mod: tvm.IRModule = bb.get()
    graph = partition(mod)
    lowered = outline(mod, graph)
    return graph, rows(graph, extract(lowered), call_names(lowered))


def test_text_has_a_row_for_each_group_and_every_reason(shown: Shown) -> None:
    lines = to_text(*shown).splitlines()
    expected = "0 fused_matmul_add_relu matmul - add relu f32[4,8] +2 const f32[4,8] 0.00 1 1.1 1"
    assert lines[2].split() == expected.split()
    assert any("ends: relu_0 is used by 2 ops: matmul_1, add_1" in line for line in lines)
    assert any("ends: reshape_0 is a view" in line for line in lines)
    assert any("sort_0 stays in main (opaque" in line for line in lines)
    assert lines[-1].startswith("7 ops in 2 subgraphs, 2 of them distinct")


def test_text_without_reasons_and_without_figures(shown: Shown) -> None:
    graph, _ = shown
    text = to_text(graph, rows(graph), why=False)
    assert "ends:" not in text
    assert "matmul_add_relu" in text
    assert "distinct" not in text


def test_json_round_trips(shown: Shown) -> None:
    data = json.loads(to_json(*shown))
    first, second = data["groups"]
    assert first["anchor"] == {"name": "matmul_0", "op": "matmul"}
    assert [item["op"] for item in first["epilogue"]] == ["add", "nn.relu"]
    assert first["workload"]["name"] == "fused_matmul_add_relu"
    assert second["outputs"] == [{"from": "op", "source": "add_1", "index": 0, "shape": [4, 8], "dtype": F32}]
    assert {item["name"] for item in data["left"]} == {"reshape_0", "sort_0"}


def test_what_stays_in_floats_is_listed(shown: Shown) -> None:
    left = (InFloats("Add_1", "add", "its result is returned in floats"),)
    assert "in floats: 1 add (Add_1): its result is returned in floats" in to_text(*shown, (), left).splitlines()
    assert json.loads(to_json(*shown, (), left))["in_floats"] == [
        {"name": "Add_1", "op": "add", "reason": "its result is returned in floats"}
    ]
    assert "in floats" not in to_text(*shown)


def test_dot_has_a_node_for_each_group_and_an_edge_for_each_dependence(shown: Shown) -> None:
    graph, table = shown
    dot = to_dot(graph, table)
    assert dot.count("[label=") == len(graph.groups) + len(graph.left)
    assert dot.count("->") == graph.quotient().number_of_edges() == 3
    assert '"matmul_0" -> "matmul_1"' in dot


def test_svg_is_well_formed_and_complete(shown: Shown) -> None:
    graph, table = shown
    root = ElementTree.fromstring(to_svg(graph, table))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{space}rect")) == len(graph.groups) + len(graph.left)
    arrows = [path for path in root.findall(f"{space}path") if path.get("marker-end")]
    assert len(arrows) == graph.quotient().number_of_edges()
    assert float(root.get("height", "0")) > 100
