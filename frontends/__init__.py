"""Models on disk -> Relax: the only room that knows file formats.

`load(model, shapes)` takes a path, bytes, an `onnx.ModelProto` or `zoo:NAME` and gives an `Imported`: a Relax
module whose `main` has static shapes and only the model's real inputs as parameters (the weights are constants).
"""

from subtune.frontends.dispatch import load
from subtune.frontends.imported import Imported
from subtune.frontends.shape_flag import parse_shape_flag
from subtune.tensorspec import TensorSpec

__all__ = ["Imported", "TensorSpec", "load", "parse_shape_flag"]
