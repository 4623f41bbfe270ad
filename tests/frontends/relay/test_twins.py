"""Whole networks: a Relay text and an ONNX model of the same weights, both generated here, give the same outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import subtune
from subtune.frontends import Parameters, load
from tests.frontends.relay.run import executable


class Twins:
    """Writes each layer twice. A value is a pair: Relay's expression and ONNX's name."""

    def __init__(self, relay_style: str, seed: int = 0) -> None:
        self.style = relay_style
        self.rng = np.random.default_rng(seed)
        self.params: dict[str, np.ndarray] = {}
        self.lines: list[str] = []
        self.nodes: list[onnx.NodeProto] = []

    def weight(self, *shape: int, low: float = -0.5, high: float = 0.5) -> str:
        name = f"w{len(self.params)}"
        self.params[name] = self.rng.uniform(low, high, shape).astype(np.float32)
        return name

    def emit(self, text: str) -> str:
        self.lines.append(f"  %{len(self.lines)} = {text};")
        return f"%{len(self.lines) - 1}"

    def node(self, op: str, *inputs: str, **attrs: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def conv(self, x: tuple[str, str], c: int, o: int, k: int, stride: int = 1, groups: int = 1) -> tuple[str, str]:
        w, p = self.weight(o, c // groups, k, k), k // 2
        text = f"kernel_size=[{k}, {k}], channels={o}, strides=[{stride}, {stride}], groups={groups}"
        if self.style == "nhwc":  # as TFLite's importer writes it
            kernel = self.emit(
                f"transpose(%{w}, axes=[2, 3, 1, 0])" if groups == 1 else f"transpose(%{w}, axes=[2, 3, 0, 1])"
            )
            layout = f'data_layout="NHWC", kernel_layout="{"HWIO" if groups == 1 else "HWOI"}"'
            made = self.emit(f"nn.conv2d({x[0]}, {kernel}, padding=[{p}, {p}, {p}, {p}], {text}, {layout})")
        else:
            made = self.emit(f"nn.conv2d({x[0]}, %{w}, padding=[{p}, {p}, {p}, {p}], {text})")
        return made, self.node("Conv", x[1], w, kernel_shape=[k, k], pads=[p] * 4, strides=[stride] * 2, group=groups)

    def norm(self, x: tuple[str, str], c: int) -> tuple[str, str]:
        names = [self.weight(c, low=0.5, high=1.5), self.weight(c), self.weight(c), self.weight(c, low=0.5, high=1.5)]
        gamma, beta, mean, var = (f"%{name}" for name in names)
        node = self.node("BatchNormalization", x[1], *names, epsilon=1e-5)
        if self.style == "simplified":  # as SimplifyInference leaves it
            scale = self.emit(f"multiply(divide(1f, sqrt(add({var}, 1e-05f))), {gamma})")
            shift = self.emit(f"add(multiply(negative({mean}), {scale}), {beta})")
            scaled = self.emit(f"multiply({x[0]}, expand_dims({scale}, axis=1, num_newaxis=2))")
            return self.emit(f"add({scaled}, expand_dims({shift}, axis=1, num_newaxis=2))"), node
        axis = ", axis=3" if self.style == "nhwc" else ""
        return self.emit(f"nn.batch_norm({x[0]}, {gamma}, {beta}, {mean}, {var}{axis})") + ".0", node

    def relu(self, x: tuple[str, str], six: bool = False) -> tuple[str, str]:
        if six:
            text = f"clip({x[0]}, a_min=0f, a_max=6f)"
            return self.emit(text), self.node("Clip", x[1], "zero", "six")
        return self.emit(f"nn.relu({x[0]})"), self.node("Relu", x[1])

    def add(self, a: tuple[str, str], b: tuple[str, str]) -> tuple[str, str]:
        return self.emit(f"add({a[0]}, {b[0]})"), self.node("Add", a[1], b[1])

    def head(self, x: tuple[str, str], c: int, classes: int) -> tuple[str, str]:
        w, b = self.weight(classes, c), self.weight(classes)
        layout = ', layout="NHWC"' if self.style == "nhwc" else ""
        flat = self.emit(f"nn.batch_flatten(nn.global_avg_pool2d({x[0]}{layout}))")
        logits = self.emit(f"nn.bias_add(nn.dense({flat}, %{w}, units={classes}), %{b})")
        pooled = self.node("Flatten", self.node("GlobalAveragePool", x[1]))
        node = self.node("Softmax", self.node("Gemm", pooled, w, b, transB=1))
        return self.emit(f"nn.softmax({logits})"), node

    def text(self, shape: tuple[int, ...], result: str) -> str:
        kinds = {name: f"Tensor[({', '.join(map(str, a.shape))}), float32]" for name, a in self.params.items()}
        kinds = {"data": f"Tensor[({', '.join(map(str, shape))}), float32]", **kinds}
        params = ", ".join(f"%{name}: {kind}" for name, kind in kinds.items())
        return "\n".join(['#[version = "0.0.5"]', f"def @main({params}) {{", *self.lines, f"  {result}", "}", ""])

    def model(self, shape: tuple[int, ...], result: str) -> onnx.ModelProto:
        held = [numpy_helper.from_array(a, name) for name, a in self.params.items()]
        held += [numpy_helper.from_array(np.float32(v), n) for n, v in (("zero", 0), ("six", 6))]
        x = helper.make_tensor_value_info("data", TensorProto.FLOAT, shape)
        y = helper.make_empty_tensor_value_info(result)
        y.type.tensor_type.elem_type = TensorProto.FLOAT
        graph = helper.make_graph(self.nodes, "twin", [x], [y], held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resnet(t: Twins, x: tuple[str, str]) -> tuple[str, str]:
    x = t.relu(t.norm(t.conv(x, 3, 8, 3), 8))
    for c, o, stride in ((8, 8, 1), (8, 16, 2)):
        y = t.relu(t.norm(t.conv(x, c, o, 3, stride), o))
        y = t.norm(t.conv(y, o, o, 3), o)
        x = t.relu(t.add(y, x if c == o else t.norm(t.conv(x, c, o, 1, stride), o)))
    return t.head(x, 16, 5)


def mobilenet(t: Twins, x: tuple[str, str]) -> tuple[str, str]:
    x = t.relu(t.norm(t.conv(x, 3, 8, 3, 2), 8), six=True)
    for c, o, stride in ((8, 8, 1), (8, 12, 2)):
        y = t.relu(t.norm(t.conv(x, c, 4 * c, 1), 4 * c), six=True)
        y = t.relu(t.norm(t.conv(y, 4 * c, 4 * c, 3, stride, 4 * c), 4 * c), six=True)
        y = t.norm(t.conv(y, 4 * c, o, 1), o)
        x = t.add(y, x) if c == o else y
    return t.head(x, 12, 5)


@pytest.mark.parametrize("style", ["plain", "simplified", "nhwc"])
@pytest.mark.parametrize("network", [resnet, mobilenet])
def test_the_same_network_in_both_languages(network: Callable, style: str):
    t = Twins(style)
    relay, name = network(t, ("%data", "data"))
    shape = (2, 3, 16, 16)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = executable(load(t.model(shape, name)).mod)([x])[0]
    fed = x.transpose(0, 2, 3, 1) if style == "nhwc" else x
    text = t.text(fed.shape, relay)
    imported = load(text, {}, Parameters(t.params))
    assert [spec.name for spec in imported.inputs] == ["data"]
    found = executable(imported.mod)([fed])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected) > 1e-3
    assert [spec.name for spec in load(text, {}, Parameters(random=True)).inputs] == ["data"]


@pytest.mark.slow
def test_a_text_is_compiled_like_any_model():
    t = Twins("simplified")
    relay, name = resnet(t, ("%data", "data"))
    shape = (1, 3, 16, 16)
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    artifact = subtune.compile(t.text(shape, relay), params=t.params, tune=False)
    twin = subtune.compile(t.model(shape, name), tune=False)
    (found,), (expected,) = artifact.run({"data": x}).values(), twin.run({"data": x}).values()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
