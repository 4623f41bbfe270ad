"""`torch.compile(model, backend="subtune")`: what is compiled, cached, and left to eager PyTorch with a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from subtune.core.errors import SubtuneError

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from subtune.integrations.torch import graph as graphs  # noqa: E402
from subtune.integrations.torch.backend import FallbackWarning, subtune  # noqa: E402
from subtune.integrations.torch.settings import Settings  # noqa: E402

nn = torch.nn
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"budget": 0, "cache": str(tmp_path / "cache")}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The artifacts that are compiled, not those from the cache."""
    found: list[Any] = []
    compile_one = graphs.driver.compile

    def counted(*args: Any, **kwargs: Any) -> Any:
        found.append(compile_one(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(graphs.driver, "compile", counted)
    return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 24)
        self.norm = nn.BatchNorm1d(24)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x, *, shift=None):
        y = torch.relu(self.norm(self.inner(x))) * self.scale
        return {"y": y if shift is None else y + shift, "x": x, "none": None}


@pytest.fixture
def net() -> Any:
    torch.manual_seed(0)
    return Net().eval()


def compiled_by(model: Any, options: dict[str, Any], **kwargs: Any) -> Any:
    return torch.compile(model, backend=subtune, options=options, **kwargs)


@torch.no_grad()
def test_a_model_is_compiled_once_and_cached(net: Any, options: dict[str, Any], built: list[Any]) -> None:
    x, shift = torch.randn(4, 16), torch.ones(24)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        model = compiled_by(net, options)
        for _ in range(2):
            found, wanted = model(x, shift=shift), net(x, shift=shift)
            assert found["x"] is x
            assert found["none"] is None
            torch.testing.assert_close(found["y"], wanted["y"], rtol=1e-4, atol=1e-5)
        assert len(built) == 1
        torch._dynamo.reset()
        found = compiled_by(net, options)(x, shift=shift)
    torch.testing.assert_close(found["y"], wanted["y"], rtol=1e-4, atol=1e-5)
    assert len(built) == 1, "the second time it is in the cache"
    (folder,) = Path(options["cache"]).iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["model.subtune", "signature.json"]


@torch.no_grad()
def test_a_damaged_cache_is_made_again(net: Any, options: dict[str, Any], built: list[Any]) -> None:
    x = torch.randn(4, 16)
    compiled_by(net, options)(x)
    (folder,) = Path(options["cache"]).iterdir()
    (folder / "signature.json").write_text(json.dumps({"arguments": []}))
    torch._dynamo.reset()
    found = compiled_by(net, options)(x)
    torch.testing.assert_close(found["y"], net(x)["y"], rtol=1e-4, atol=1e-5)
    assert len(built) == 2


@torch.no_grad()
def test_weights_that_change_are_seen(net: Any, options: dict[str, Any], built: list[Any]) -> None:
    x = torch.randn(4, 16)
    model = compiled_by(net, options)
    model(x)
    net.inner.weight.mul_(3.0)
    torch.testing.assert_close(model(x)["y"], net(x)["y"], rtol=1e-4, atol=1e-4)
    net.inner.bias.data = torch.randn(24)
    torch.testing.assert_close(model(x)["y"], net(x)["y"], rtol=1e-4, atol=1e-4)
    assert len(built) == 3


@torch.no_grad()
def test_what_is_compiled_too_often_is_left_to_pytorch(
    net: Any, options: dict[str, Any], built: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_MOST", 1)
    x = torch.randn(4, 16)
    model = compiled_by(net, options)
    model(x)
    net.inner.weight.mul_(3.0)
    with pytest.warns(FallbackWarning, match=r"graph 0/0 \(\d+ operators from .*other weights or shapes"):
        found = model(x)
    torch.testing.assert_close(found["y"], net(x)["y"])
    assert len(built) == 1


def test_inference_mode(options: dict[str, Any], built: list[Any]) -> None:
    """Of its tensors nobody counts how often they are written to."""
    x = torch.randn(4, 16)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        net = nn.Sequential(nn.Linear(16, 8), nn.Tanh()).eval()
        model = compiled_by(net, options)
        for _ in range(2):
            torch.testing.assert_close(model(x), net(x), rtol=1e-4, atol=1e-5)
    assert len(built) == 1


def test_gradients_are_pytorchs(net: Any, options: dict[str, Any], built: list[Any]) -> None:
    x = torch.randn(4, 16)
    with pytest.warns(FallbackWarning, match="its results need gradients; call the model under"):
        found = compiled_by(net, options)(x)
    found["y"].sum().backward()
    assert net.inner.weight.grad is not None
    assert not built


@torch.no_grad()
def test_a_module_that_changes_its_state_still_does(options: dict[str, Any], built: list[Any]) -> None:
    """PyTorch's AOT compiler returns what changes, and copies it back."""
    torch.manual_seed(0)
    wanted, model = nn.BatchNorm1d(8, momentum=0.5), nn.BatchNorm1d(8, momentum=0.5)
    faster, x = compiled_by(model, options), torch.randn(6, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for _ in range(2):
            torch.testing.assert_close(faster(x), wanted(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.running_mean, wanted.running_mean, rtol=1e-4, atol=1e-5)
    assert int(model.num_batches_tracked) == 2
    assert len(built) == 1


@torch.no_grad()
def test_what_is_refused_runs_eagerly_and_says_why_once(options: dict[str, Any]) -> None:
    def refused(x: Any) -> Any:
        return torch.linalg.inv(x)

    model, x = compiled_by(refused, options), torch.eye(4) + 0.1
    with pytest.warns(FallbackWarning) as said:
        found = model(x)
    (text,) = {str(one.message) for one in said if one.category is FallbackWarning}
    assert text.startswith("subtune leaves the graph 0/0 (")
    assert "eager PyTorch: " in text
    assert "\n" not in text
    torch.testing.assert_close(found, refused(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x)


@torch.no_grad()
def test_random_operators_are_pytorchs(options: dict[str, Any]) -> None:
    """Not left out, as an exporter for inference does."""
    model, x = compiled_by(nn.Dropout(0.5).train(), options), torch.ones(64)
    with pytest.warns(FallbackWarning, match="RandomUniformLike"):
        assert int((model(x) == 0).sum()) > 0


@torch.no_grad()
def test_constants_in_the_code(options: dict[str, Any], built: list[Any]) -> None:
    def scaled(x: Any) -> Any:
        return x * torch.tensor([1.0, 2.0, 3.0])

    x = torch.randn(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        torch.testing.assert_close(compiled_by(scaled, options)(x), scaled(x))
    assert len(built) == 1


@torch.no_grad()
def test_attention_with_fewer_heads_of_keys(options: dict[str, Any], built: list[Any]) -> None:
    def attention(q: Any, k: Any) -> Any:
        return nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)

    q, k = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        torch.testing.assert_close(compiled_by(attention, options)(q, k), attention(q, k), rtol=1e-4, atol=1e-5)
    assert len(built) == 1


@torch.no_grad()
def test_results_lie_as_pytorch_expects(options: dict[str, Any]) -> None:
    """Of a transposed result, views are made by its strides."""

    def transposed(x: Any) -> Any:
        y = (x @ x.mT).transpose(0, 2).exp()
        return y, y[1:]

    x = torch.randn(2, 3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        found = compiled_by(transposed, options)(x)
    for one, wanted in zip(found, transposed(x), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-4)
        assert one.stride() == wanted.stride()


@torch.no_grad()
def test_shapes_that_vary_are_compiled_one_by_one(net: Any, options: dict[str, Any], built: list[Any]) -> None:
    model = compiled_by(net, options, dynamic=True)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(model(x)["y"], net(x)["y"], rtol=1e-4, atol=1e-5)
    assert len(built) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bugdet": 3}, "did you mean 'budget'"),
        ({"budget": "soon"}, "'soon' is not a duration"),
        ({"budget": -1}, "-1"),
    ],
)
def test_options_are_checked(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SubtuneError, match=said):
        Settings.of(given)


def test_budgets() -> None:
    assert Settings.of({"budget": "2m"}).budget_s == 120
    assert Settings.of(None).budget_s == 60
    assert Settings.of({"budget": None}).compile_options("auto", 2)["budget"] is None
    assert Settings.of({"budget": 0}).compile_options("auto", 2)["tune"] is False
    assert Settings.of({}).compile_options("cuda", 2)["threads"] is None


def test_pytorch_finds_the_backend_by_its_name(tmp_path: Path) -> None:
    """As pip installs it: an entry point in the package's metadata."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["torch_dynamo_backends"]
    info = tmp_path / "subtune-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: subtune\nVersion: 0.1.0\n")
    lines = "".join(f"{name} = {place}\n" for name, place in points.items())
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{lines}")
    code = (
        "import torch\nfrom torch._dynamo.backends.registry import lookup_backend\n"
        "found = lookup_backend('subtune')\nprint(found.__module__, found.__name__)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["subtune.integrations.torch.backend", "subtune"]


def test_subtune_does_without_pytorch() -> None:
    code = (
        "import sys, subtune\nprint('torch' in sys.modules)\nimport subtune.compiling\n"
        "print(any(name.startswith('subtune.integrations.torch') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
