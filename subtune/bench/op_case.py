"""One operator as an ONNX model of its own, in the layout of who runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from subtune.models.builder import Builder

if TYPE_CHECKING:
    import onnx

Shape = tuple[int, ...]
Body = Callable[..., str | Sequence[str]]

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class OpCase:
    """An operator and its size.

    An image operator is timed in each framework's own layout of activations: inside a network, where it will run, it
    is given that. subtune and PyTorch (channels_last) get NHWC tensors, the others NCHW ones.

    Attributes:
        body: `body(builder, *inputs)` adds the nodes, in NCHW, and returns the output or the outputs.
        inputs: shapes in NCHW, or whatever the operator takes.
        flops: of one run, counted as the direct algorithm; 0.0 for an operator that memory bounds.
        scale: of the first input's values, which are uniform in [-scale, scale).
        bar: the ratio to `rival` that replaces the usual bar; 0.0 keeps that.
    """

    name: str
    body: Body
    inputs: tuple[Shape, ...]
    flops: float = 0.0
    is_image: bool = False
    opset: int = 17
    scale: float = 1.0
    rival: str = ""
    bar: float = 0.0

    def model(self, nhwc: bool) -> onnx.ModelProto:
        """The model; `nhwc` makes a difference to image operators only."""
        import onnx

        builder = Builder(self.name, opset=self.opset, dtype="float32")
        is_turned = nhwc and self.is_image
        names = []
        for index, shape in enumerate(self.inputs):
            name = builder.input(f"x{index}", _in_nhwc(shape) if is_turned else shape)
            names.append(builder.op("Transpose", name, perm=TO_NCHW) if is_turned and len(shape) == 4 else name)
        result = self.body(builder, *names)
        outputs = [result] if isinstance(result, str) else list(result)
        if is_turned:
            outputs = [builder.op("Transpose", name, perm=TO_NHWC) for name in outputs]
        model = builder.finish()
        for name in outputs:
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        return onnx.shape_inference.infer_shapes(model, data_prop=True)

    def arrays(self, nhwc: bool) -> list[np.ndarray]:
        """The same values for either layout."""
        rng = np.random.default_rng(0)
        found = []
        for index, shape in enumerate(self.inputs):
            array = (rng.random(shape, dtype=np.float32) * 2 - 1) * np.float32(1.0 if index else self.scale)
            is_turned = nhwc and self.is_image and array.ndim == len(TO_NHWC)
            found.append(np.ascontiguousarray(array.transpose(TO_NHWC)) if is_turned else array)
        return found


def _in_nhwc(shape: Shape) -> Shape:
    """An image's shape with its axes in another order; other ranks as they are."""
    return tuple(shape[axis] for axis in TO_NHWC) if len(shape) == len(TO_NHWC) else shape
