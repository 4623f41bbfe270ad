"""Files that are no models, models that are not valid: one clear sentence each, never a traceback."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune.core.errors import ModelError, SubtuneError
from subtune.frontends import load

TEXT = '<ir_version: 8, opset_import: ["" : 13]> g (float[2,2] x) => (float[2,2] y) { h = Relu(x)\n y = Neg(h) }'


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def node(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


def is_one_sentence(error: BaseException) -> bool:
    text = str(error)
    return "\n" not in text and text.endswith(".") and "Traceback" not in text and len(text) < 900


@pytest.mark.parametrize(
    ("data", "pattern"),
    [
        (b"", "is empty"),
        (b"hello, this is no model\n" * 20, "it is a text file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "a PNG image"),
        (b"PK\x03\x04" + bytes(50), "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (random.Random(0).randbytes(1000), "not a readable ONNX model"),
        (bytes(100), "ONNX model"),
        (b"\x08\x08", "no graph"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, data: bytes, pattern: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=pattern) as caught:
        load(path)
    assert "m.onnx" in str(caught.value)
    assert is_one_sentence(caught.value)
    with pytest.raises(ModelError, match=pattern):
        load(data)


def refusal(data: bytes) -> SubtuneError | None:
    """What `load` refuses the bytes with; any other exception comes through."""
    try:
        load(data)
    except SubtuneError as error:
        return error
    return None


def test_every_truncation_is_refused_or_harmless() -> None:
    """Cut at every byte: a sentence, or (cut behind the graph) the same model; never another exception."""
    data = model().SerializeToString()
    refused = 0
    for length in range(len(data)):
        error = refusal(data[:length])
        if error is not None:
            refused += 1
            assert is_one_sentence(error), error
    assert refused >= len(data) - 3


def test_flipped_bytes_never_give_another_exception() -> None:
    data = model().SerializeToString()
    rng = random.Random(1)
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(data))] = rng.randrange(256)
        error = refusal(bytes(damaged))
        assert error is None or "\n" not in str(error), error


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no file"):
        load(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="is a directory"):
        load(tmp_path)
    with pytest.raises(ModelError):
        load("a\0b")


def edited(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    changed = model()
    change(changed)
    return changed


def rewire(index: int, name: str) -> Callable[[onnx.ModelProto], None]:
    def change(m: onnx.ModelProto) -> None:
        m.graph.node[index].input[0] = name

    return change


BAD: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "cycle": (rewire(0, "y"), "has a cycle: .*Relu 'h'"),
    "self_cycle": (rewire(0, "h"), "has a cycle: .*Relu 'h'"),
    "undefined_value": (rewire(0, "nowhere"), "Relu 'h' uses the value 'nowhere'"),
    "undefined_output": (
        lambda m: m.graph.output.append(helper.make_tensor_value_info("z", 1, [1])),
        "output 'z' is defined by no node",
    ),
    "two_definitions": (
        lambda m: m.graph.node.append(node("Abs", ["x"], ["h"])),
        "Two nodes define the value 'h'",
    ),
    "defines_an_input": (
        lambda m: m.graph.node.append(node("Abs", ["h"], ["x"])),
        "defines 'x', which is an input",
    ),
    "two_inputs": (lambda m: m.graph.input.append(m.graph.input[0]), "two inputs named 'x'"),
    "two_initialisers": (
        lambda m: m.graph.initializer.extend([numpy_helper.from_array(np.zeros(2, "float32"), "i")] * 2),
        "two initialisers named 'i'",
    ),
    "no_outputs": (lambda m: m.graph.ClearField("output"), "without outputs"),
    "no_graph": (lambda m: m.ClearField("graph"), "no graph"),
    "new_ir": (lambda m: setattr(m, "ir_version", 999), "IR version 999"),
    "new_opset": (lambda m: setattr(m.opset_import[0], "version", 999), "opset 999"),
    "no_opset": (
        lambda m: setattr(m.opset_import[0], "domain", "com.example"),
        "which version of ONNX's operators",
    ),
    "unknown_attribute": (
        lambda m: m.graph.node[0].attribute.append(helper.make_attribute("colour", 1)),
        "not valid ONNX: .*colour",
    ),
    "too_many_inputs": (lambda m: m.graph.node[0].input.append("x"), "not valid ONNX|contradict"),
    "string_input": (
        lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.STRING),
        "'x' has the element type STRING",
    ),
    "sparse_initialiser": (
        lambda m: m.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                helper.make_tensor("v", 1, [1], [1.0]), helper.make_tensor("i", 7, [1, 1], [0]), [4]
            )
        ),
        "sparse initialisers",
    ),
    "weight_without_values": (
        lambda m: m.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[4096])),
        "tensor 'w' do not fit",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_models(case: str) -> None:
    change, pattern = BAD[case]
    if case == "weight_without_values":
        bad = edited(change)
        bad.graph.node.append(node("Abs", ["w"], ["a"]))
        bad.graph.output.append(helper.make_tensor_value_info("a", 1, [4096]))
    else:
        bad = edited(change)
    with pytest.raises(ModelError, match=pattern) as caught:
        load(bad)
    assert is_one_sentence(caught.value), caught.value


def test_a_long_cycle_is_shortened() -> None:
    ring = [node("Relu", [f"v{i}"], [f"v{(i + 1) % 50}"]) for i in range(50)]
    graph = helper.make_graph(ring, "g", [], [helper.make_tensor_value_info("v0", 1, [2])])
    with pytest.raises(ModelError, match="more") as caught:
        load(helper.make_model(graph))
    assert is_one_sentence(caught.value)


def test_sequence_input() -> None:
    graph = helper.make_graph(
        [node("SequenceLength", ["s"], ["y"])],
        "g",
        [helper.make_tensor_sequence_value_info("s", 1, [2])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
    )
    with pytest.raises(ModelError, match=r"SequenceLength|sequence"):
        load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]))


def test_recursive_functions() -> None:
    recursive = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13, "mine" : 1]>
        g (float[4] x) => (float[4] y) { y = mine.f(x) }
        <domain: "mine", opset_import: ["" : 13, "mine" : 1]>
        f (a) => (b) { b = mine.f(a) }
    """)
    with pytest.raises(ModelError):
        load(recursive)
