"""A new frontend: a file of layers, one a line, with the suffix .layers."""

# --8<-- [start:frontend]
from pathlib import Path

import tvm
from tvm import relax

from subtune.core.errors import ModelError
from subtune.core.tensor_spec import TensorSpec
from subtune.frontends import Imported, Parameters
from subtune.frontends.dispatch import Model, Shapes

LAYERS = {
    "relu": relax.op.nn.relu,
    "softmax": relax.op.nn.softmax,
    "scale": lambda x, factor: relax.op.multiply(x, relax.const(float(factor), "float32")),
}


def load_layers(model: Model, shapes: Shapes, parameters: Parameters) -> Imported | None:
    """Imports a path that ends in .layers; None for everything else."""
    if not str(model).endswith(".layers"):
        return None
    path = Path(str(model))
    first, *rest = [line.split() for line in path.read_text().splitlines() if line.strip()]
    if first[0] != "input":
        raise ModelError(f"{path} begins with {first[0]!r}: its first line is `input NAME D0 D1 …`.")
    _, name, *dims = first
    shape = tuple(int(dim) for dim in dims)
    return Imported(
        mod=to_relax(name, shape, rest),
        inputs=(TensorSpec(name, shape, "float32"),),
        outputs=(TensorSpec("output", shape, "float32"),),
        name=path.stem,
        reference=None,  # nothing else runs such models: they are compared with the untuned build
    )


# --8<-- [end:frontend]


# --8<-- [start:relax]
def to_relax(name: str, shape: tuple[int, ...], layers: list[list[str]]) -> tvm.IRModule:
    """`main` takes the model's inputs and nothing else; every shape is static."""
    for number, (layer, *_) in enumerate(layers, 2):
        if layer not in LAYERS:
            raise ModelError(f"line {number}: there is no layer {layer!r}; there are {', '.join(LAYERS)}.")
    builder = relax.BlockBuilder()
    x = relax.Var(name, relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for layer, *arguments in layers:
                value = builder.emit(LAYERS[layer](value, *arguments))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


# --8<-- [end:relax]

# --8<-- [start:register]
from subtune.frontends import dispatch

dispatch.FRONTENDS = (load_layers, *dispatch.FRONTENDS)
# --8<-- [end:register]

# --8<-- [start:use]
import tempfile

import numpy as np

import subtune

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "small.layers"
    path.write_text("input x 2 8\nscale 0.5\nrelu\n")
    artifact = subtune.compile(str(path), tune=False)
    x = np.linspace(-1, 1, 16, dtype="float32").reshape(2, 8)
    np.testing.assert_allclose(artifact.run({"x": x})["output"], np.maximum(0.5 * x, 0))

    path.write_text("input x 2 8\nswish\n")
    try:
        subtune.compile(str(path), tune=False)
    except ModelError as error:
        assert "line 2: there is no layer 'swish'" in str(error), error
    else:
        raise AssertionError("an unknown layer was not refused")
# --8<-- [end:use]
