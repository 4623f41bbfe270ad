"""The layers: BERT's dense ones over the sequence length, ResNet-50's convolutions over the batch."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx

from subtune.bench.op_case import OpCase
from subtune.models.builder import Builder

LAYER_KEY = "subtune.layer"
"""Metadata of the ONNX model: what `torch_layer` makes a module of."""
WEIGHTS = "layer"
"""What the names of the weights begin with."""


@dataclass(frozen=True, slots=True)
class Dense:
    """`x @ w + b` of `cin` columns, then GELU, or the sum with a second input."""

    cin: int
    cout: int
    batch: int = 1
    gelu: bool = False
    residual: bool = False

    symbol = "seq"
    axis = 1
    """Of the inputs and of the output, where the symbol is."""
    is_image = False

    def shapes(self, value: int) -> tuple[tuple[int, ...], ...]:
        """Of the inputs."""
        data = (self.batch, value, self.cin)
        return (data, (self.batch, value, self.cout)) if self.residual else (data,)

    def body(self, b: Builder, x: str, *added: str) -> str:
        y = b.linear(WEIGHTS, x, self.cin, self.cout)
        if self.gelu:  # as PyTorch's exporter decomposes it, which ONNX Runtime looks for
            erf = b.op("Erf", b.op("Div", y, b.constant(math.sqrt(2.0))))
            y = b.op("Mul", b.op("Mul", y, b.op("Add", erf, b.constant(1.0))), b.constant(0.5))
        return b.op("Add", y, *added) if added else y


@dataclass(frozen=True, slots=True)
class Conv:
    """A square convolution of images of `size` pixels a side, with bias; the sum with a second input; ReLU."""

    size: int
    cin: int
    cout: int
    kernel: int
    stride: int = 1
    residual: bool = False

    symbol = "batch"
    axis = 0
    is_image = True

    def shapes(self, value: int) -> tuple[tuple[int, ...], ...]:
        data, out = (value, self.cin, self.size, self.size), self.size // self.stride
        return (data, (value, self.cout, out, out)) if self.residual else (data,)

    def body(self, b: Builder, x: str, *added: str) -> str:
        y = b.conv(WEIGHTS, x, self.cin, self.cout, self.kernel, stride=self.stride)
        return b.op("Relu", b.op("Add", y, *added) if added else y)


@dataclass(frozen=True, slots=True)
class LayerCase:
    """A layer whose symbol may be 1 to `most`. `measured`: the values at which it is raced, the last of them `most`."""

    name: str
    layer: Dense | Conv
    most: int
    measured: tuple[int, ...]

    @property
    def symbol(self) -> str:
        return self.layer.symbol

    @property
    def domain(self) -> str:
        """As `--dynamic` takes it."""
        return f"1..{self.most}"

    @property
    def buckets(self) -> tuple[int, ...]:
        """Powers of two, up to the first that holds the largest value."""
        return tuple(2**i for i in range(math.ceil(math.log2(self.most)) + 1))

    def bucket(self, value: int) -> int:
        """The next bucket."""
        return next(one for one in self.buckets if one >= value)

    def model(self, nhwc: bool, value: int | None = None) -> onnx.ModelProto:
        """For one value of the symbol, or with None for any; images with their channels last if `nhwc`."""
        model = self._at(value or self.most).model(nhwc)
        if value is None:
            for given in model.graph.input:
                given.type.tensor_type.shape.dim[self.layer.axis].dim_param = self.symbol
            del model.graph.value_info[:]
            for made in model.graph.output:
                made.type.tensor_type.ClearField("shape")
            model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        kind = type(self.layer).__name__
        model.metadata_props.add(key=LAYER_KEY, value=json.dumps({"kind": kind, **asdict(self.layer)}))
        return model

    def arrays(self, nhwc: bool, value: int) -> list[np.ndarray]:
        """Inputs for one value, the same for either layout."""
        return self._at(value).arrays(nhwc)

    def flops(self, value: int) -> float:
        """Of one run, counted as the direct algorithm."""
        layer = self.layer
        if isinstance(layer, Dense):
            return 2.0 * layer.batch * value * layer.cin * layer.cout
        return 2.0 * value * (layer.size // layer.stride) ** 2 * layer.cin * layer.cout * layer.kernel**2

    def _at(self, value: int) -> OpCase:
        layer: Any = self.layer
        return OpCase(self.name, layer.body, layer.shapes(value), is_image=layer.is_image)


def is_layer(path: str) -> bool:
    """Whether the ONNX file is one of these."""
    return any(entry.key == LAYER_KEY for entry in onnx.load(path, load_external_data=False).metadata_props)


SEQ = (1, 5, 12, 24, 43, 62, 81, 100, 119, 128)
"""Lengths at which DietCode was measured, and short ones."""
BATCH = (1, 2, 3, 5, 6, 8)


def _dense(cin: int, cout: int, batch: int, gelu: bool = False, residual: bool = False) -> LayerCase:
    marks = "-gelu" * gelu + "-residual" * residual
    return LayerCase(f"dense-{cin}-{cout}{marks}-b{batch}", Dense(cin, cout, batch, gelu, residual), SEQ[-1], SEQ)


def _conv(size: int, cin: int, cout: int, kernel: int, stride: int = 1, residual: bool = False) -> LayerCase:
    marks = f"-s{stride}" * (stride > 1) + "-residual" * residual
    layer = Conv(size, cin, cout, kernel, stride, residual)
    return LayerCase(f"conv-{size}-{cin}-{cout}-k{kernel}{marks}", layer, BATCH[-1], BATCH)


CASES = (
    *(
        one
        for batch in (1, 16)  # 16 is DietCode's
        for one in (
            _dense(768, 2304, batch),
            _dense(768, 768, batch),
            _dense(768, 3072, batch, gelu=True),
            _dense(3072, 768, batch, residual=True),
        )
    ),
    _conv(224, 3, 64, 7, stride=2),
    _conv(56, 64, 64, 1),
    _conv(56, 64, 64, 3),
    _conv(56, 64, 256, 1, residual=True),
    _conv(56, 128, 128, 3, stride=2),
    _conv(28, 512, 128, 1),
    _conv(28, 128, 128, 3),
    _conv(28, 128, 512, 1, residual=True),
    _conv(14, 1024, 256, 1),
    _conv(14, 256, 256, 3),
    _conv(14, 256, 1024, 1, residual=True),
    _conv(7, 2048, 512, 1),
    _conv(7, 512, 512, 3),
    _conv(7, 512, 2048, 1, residual=True),
)
