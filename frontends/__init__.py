"""Models on disk -> Relax: the only room that knows file formats.

`load(model, shapes, parameters)` takes a path (ONNX, Relay), bytes, an `onnx.ModelProto`, a `LentModel` or `zoo:NAME`
and gives an `Imported`: a Relax module whose `main` has static shapes and only the model's real inputs as parameters
(the weights are constants).

`symbolic_inputs(model, shapes, parameters)` says what of a model's inputs has no size yet, and `instance` turns values
of its symbols into the `shapes` of `load`.
"""

from subtune.core.tensor_spec import TensorSpec
from subtune.frontends.dispatch import is_relay, is_relay_text, load, load_whole, opened_once, symbolic_inputs
from subtune.frontends.imported import Imported
from subtune.frontends.onnx.lent import LentModel
from subtune.frontends.parameters import Parameters
from subtune.frontends.shape_flag import parse_shape_flag
from subtune.frontends.symbolic import SymbolicInput, instance, substituted, symbols_of

__all__ = [
    "Imported", "LentModel", "Parameters", "SymbolicInput", "TensorSpec", "instance", "is_relay", "is_relay_text",
    "load", "load_whole", "opened_once", "parse_shape_flag", "substituted", "symbolic_inputs", "symbols_of",
]  # fmt: skip
