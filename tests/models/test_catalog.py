"""Finding, describing and building models by name, and the errors of asking for what is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from subtune import models
from subtune.core.errors import ModelError

ISSUED = {
    "bert",
    "convnext_tiny",
    "efficientnet_lite0",
    "gpt2",
    "lstm",
    "mlp",
    "mobilenet_v2",
    "resnet18",
    "resnet50",
    "squeezenet",
    "unet",
    "vgg16",
    "vit",
}


def test_names_are_sorted_and_complete() -> None:
    assert models.names() == tuple(sorted(ISSUED))


@pytest.mark.parametrize("name", models.names())
def test_describe_is_one_sentence(name: str) -> None:
    line = models.describe(name)
    assert "\n" not in line
    assert line.endswith(".")
    assert len(line) > 30


def test_listing_the_zoo_imports_no_onnx() -> None:
    code = (
        "import sys; from subtune import models; [models.describe(n) for n in models.names()];"
        " sys.exit(','.join(m for m in ('onnx', 'onnxruntime', 'tvm') if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("function", [models.build, models.reduced, models.describe])
def test_unknown_name_suggests_a_close_one(function: object) -> None:
    with pytest.raises(ModelError, match=r"no model 'resnet81' \(did you mean resnet18") as caught:
        function("resnet81")  # type: ignore[operator]
    assert "mobilenet_v2" in str(caught.value)


@pytest.mark.parametrize("name", ["", "../setup", "catalog", "builder"])
def test_only_models_can_be_named(name: str) -> None:
    with pytest.raises(ModelError, match="has no model"):
        models.build(name)


def test_unknown_argument_suggests_a_close_one() -> None:
    with pytest.raises(ModelError, match=r"resnet18 has no argument 'batchs' \(did you mean batch\?\); it takes batch"):
        models.build("resnet18", batchs=2)


def test_argument_of_another_model_is_refused() -> None:
    with pytest.raises(ModelError, match="mlp has no argument 'heads'"):
        models.build("mlp", heads=2)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet18", {"dtype": "float64"}, "use float32 or float16"),
        ("resnet18", {"batch": 0}, "above zero"),
        ("resnet18", {"batch": -3}, "above zero"),
        ("resnet18", {"batch": "2"}, "must be of type int"),
        ("resnet18", {"batch": True}, "must be of type int"),
        ("resnet18", {"batch": 1.5}, "must be of type int"),
        ("resnet18", {"width": float("nan")}, "above zero"),
        ("resnet18", {"width": float("inf")}, "finite"),
        ("lstm", {"bidirectional": 1}, "must be of type bool"),
        ("bert", {"hidden": 100, "heads": 7}, "heads=7 does not divide hidden=100"),
        ("bert", {"seq": 513}, "exceeds positions=512"),
        ("gpt2", {"hidden": 100, "heads": 7}, "heads=7 does not divide hidden=100"),
        ("gpt2", {"seq": 2048}, "exceeds context=1024"),
        ("vit", {"hidden": 100, "heads": 7}, "heads=7 does not divide hidden=100"),
        ("vit", {"image": 225}, "patch=16 does not divide image=225"),
        ("vgg16", {"image": 31}, "use 32 or more"),
        ("squeezenet", {"image": 24}, "use 25 or more"),
        ("unet", {"image": 100}, "multiple of 8"),
        ("unet", {"upsample": "nearest"}, "use transpose or resize"),
    ],
)
def test_values_out_of_range_are_refused(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        models.build(name, **arguments)


def test_reduced_takes_overrides() -> None:
    model = models.reduced("vit", layers=1)
    assert sum(node.op_type == "Gelu" for node in model.graph.node) == 1


def test_integer_is_taken_where_a_fraction_is_the_default() -> None:
    assert models.build("squeezenet", width=1) == models.build("squeezenet")
