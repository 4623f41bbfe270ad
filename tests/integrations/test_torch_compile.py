"""Modules of PyTorch's compiled in one line: what goes in and out, and what is refused."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import subtune
from subtune.core.errors import InputError, ModelError, ShapeError

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from subtune.integrations.torch.export import export_module, export_program  # noqa: E402
from subtune.integrations.torch.signature import output_names  # noqa: E402
from subtune.integrations.torch.tensors import to_array, to_tensor  # noqa: E402

nn = torch.nn
Pair = namedtuple("Pair", "first second")


@dataclass
class Scores:
    logits: Any
    states: Any = None


torch.export.register_dataclass(Scores, serialized_type_name="subtune.tests.Scores")


class Words(nn.Module):
    """Tied weights, a buffer, a keyword, None, and results of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(48, 32)
        self.inner = nn.Linear(32, 32)
        self.head = nn.Linear(32, 48, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("positions", torch.randn(16, 32))

    def forward(self, ids, mask=None, *, scale, times=2):
        x = torch.relu(self.inner(self.table(ids) + self.positions[: ids.shape[1]])) * scale
        if mask is not None:
            x = x * mask[..., None]
        scores = Scores(self.head(x) * times)
        return {"scores": scores, "pair": Pair(x, (ids, None, times)), "twice": [x, self.positions]}


@pytest.fixture(scope="module")
def words() -> Any:
    torch.manual_seed(0)
    return Words().eval()


@pytest.fixture(scope="module")
def ids() -> Any:
    return torch.randint(0, 48, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def compiled(words: Any, ids: Any) -> Any:
    # the keywords are one argument of `forward` each, given by its name
    example = {"ids": ids, "mask": None, "scale": torch.tensor(0.5)}
    return subtune.compile(words, example, tune=False)


def test_the_result_has_the_modules_structure(words: Any, compiled: Any, ids: Any) -> None:
    scale = torch.tensor(0.25)
    with torch.no_grad():
        wanted = words(ids, scale=scale)
    found = compiled(ids, scale=scale)
    assert isinstance(found["scores"], Scores)
    assert found["scores"].states is None
    assert isinstance(found["pair"], Pair)
    assert found["pair"].second[0] is ids
    assert found["pair"].second[1:] == (None, 2)
    assert found["twice"][1] is words.positions
    torch.testing.assert_close(found["scores"].logits, wanted["scores"].logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found["pair"].first, wanted["pair"].first, rtol=1e-4, atol=1e-4)
    assert found["twice"][0] is found["pair"].first
    assert [spec.name for spec in compiled.artifact.outputs] == ["scores.logits", "pair.first"]


def test_arguments_by_position_or_by_name(compiled: Any, ids: Any) -> None:
    scale = torch.tensor(0.5)
    first = compiled(ids, None, scale=scale)["pair"].first
    for found in (compiled(scale=scale, ids=ids), compiled(ids, scale=scale, mask=None)):
        assert torch.equal(found["pair"].first, first)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mask": torch.ones(2, 8)}, "the argument mask is a tensor of"),
        ({"scale": 0.5}, "the argument scale is 0.5; give a tensor"),
        ({"ids": torch.zeros(2, 9, dtype=torch.long)}, "input ids has shape"),
        ({"ids": torch.zeros(2, 8)}, "input ids has dtype"),
        ({"other": torch.zeros(1)}, "another structure"),
    ],
)
def test_other_arguments_are_refused(compiled: Any, ids: Any, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        compiled(**{"ids": ids, "scale": torch.tensor(0.5), **change})


def test_weights_are_lent(words: Any, ids: Any) -> None:
    exported = export_module(words, (ids,), {"scale": torch.tensor(0.5)})
    weight = words.table.weight.detach().numpy()
    assert any(np.shares_memory(array, weight) for array in exported.model.arrays.values())
    assert sum(array.shape == weight.shape for array in exported.model.arrays.values()) == 1, "tied weights are one"
    external = [init for init in exported.model.proto.graph.initializer if init.name in exported.model.arrays]
    assert len(external) == len(exported.model.arrays)
    assert not any(init.raw_data for init in external)


def test_an_exported_program_with_many_shapes() -> None:
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8)).eval()
    batch = torch.export.Dim("batch", min=2, max=6)
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(4, 16),), dynamic_shapes=({0: batch},))
        compiled = subtune.compile(program, tune=False)
        (symbol,) = compiled.artifact.inputs[0].symbols
        assert compiled.artifact.inputs[0].shape == (symbol, 16)
        for rows in (2, 5, 6):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="7"):
        compiled(torch.randn(7, 16))


def test_dimensions_have_their_users_names_and_ranges(words: Any, ids: Any) -> None:
    shapes = {"ids": {1: torch.export.Dim("seq", min=2, max=16)}, "scale": None}
    exported = export_module(words, (), {"ids": ids, "scale": torch.tensor(0.5)}, shapes)
    assert exported.dynamic == {"seq": range(2, 17)}
    assert exported.model.proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "seq"


def test_a_dimension_without_a_bound_is_refused_unless_its_values_are_given() -> None:
    model, shapes = nn.Linear(8, 8).eval(), ({0: torch.export.Dim("rows")},)
    with pytest.raises(ShapeError, match="'rows' has no upper bound"):
        export_module(model, (torch.randn(4, 8),), {}, shapes)
    assert export_module(model, (torch.randn(4, 8),), {}, shapes, {"rows": [1, 2]}).dynamic == {}


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        return x * self.calls


class Branches(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x


class Returns(nn.Module):
    def forward(self, x):
        return x, None


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Counts(), "changes its buffer 'calls'"),
        (Branches(), "torch.export refuses Branches"),
        (Returns(), "computes no tensor"),
        (nn.Sequential(nn.Dropout()).train(), "in training mode"),
    ],
    ids=["state", "data", "nothing", "training"],
)
def test_what_is_refused_is_said_in_a_sentence(module: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        subtune.compile(module if said == "in training mode" else module.eval(), (torch.ones(2, 3),))
    assert "\n" not in str(caught.value)


def test_example_inputs_are_needed_in_a_known_form() -> None:
    with pytest.raises(ModelError, match="example_inputs is of type int"):
        subtune.compile(nn.Linear(2, 2).eval(), 3)
    program = torch.export.export(nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    with pytest.raises(ModelError, match="already"):
        subtune.compile(program, (torch.ones(1, 2),))


def test_a_wrong_model_disagrees_with_pytorch() -> None:
    """The reference is the module, not the ONNX model that is compiled."""
    model = nn.Linear(64, 32).eval()
    exported = export_program(torch.export.export(model, (torch.ones(1, 64),)), model)
    for array in exported.model.arrays.values():
        assert np.shares_memory(array, model.weight.detach().numpy())
    arrays = {name: -array for name, array in exported.model.arrays.items()}
    from dataclasses import replace

    from subtune.core.errors import VerificationError

    with pytest.raises(VerificationError, match="PyTorch"):
        subtune.compile(replace(exported.model, arrays=arrays), tune=False)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "uint8", "bool"])
def test_tensors_are_seen_where_they_are(dtype: str) -> None:
    tensor = torch.tensor([0, 1, 2]).to(getattr(torch, dtype))
    array = to_array(tensor, "x")
    assert str(array.dtype) == dtype
    assert array.__array_interface__["data"][0] == tensor.data_ptr()
    back = to_tensor(array)
    assert back.dtype == tensor.dtype
    assert back.data_ptr() == tensor.data_ptr()


def test_results_are_tensors_over_the_artifacts_arrays(compiled: Any, ids: Any) -> None:
    """A result is not overwritten by the next call as long as it is kept."""
    first = compiled(ids, scale=torch.tensor(0.5))["pair"].first
    kept = first.clone()
    compiled(ids, scale=torch.tensor(3.0))
    assert torch.equal(first, kept)


def test_outputs_are_called_by_their_place() -> None:
    spec = torch.utils._pytree.tree_structure({"a b": 0, "x": (0, [0])})
    assert output_names(spec, taken={"a_b"}) == ["a_b_", "x.0", "x.1.0"]
    assert output_names(torch.utils._pytree.tree_structure((0, 0)), taken=()) == ["output.0", "output.1"]


def test_a_model_of_transformers_in_one_line() -> None:
    """Its result is a class of its own, with a cache inside, which PyTorch does not know of before."""
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    tokens = torch.arange(8)[None]
    exported = export_module(model, (), {"input_ids": tokens})
    assert exported.signature.outputs[0] == "logits"
    assert [name.split(".", 1)[1] for name in exported.signature.outputs[1:]] == ["key_cache.0", "value_cache.0"]
    with torch.no_grad():
        wanted = model(input_ids=tokens)
    leaves = exported.signature.leaves((tokens,), {})
    again = exported.signature.result(leaves, exported.signature.computed(wanted))
    assert type(again) is type(wanted)
    assert torch.equal(again[1].layers[0].keys, wanted[1].layers[0].keys)


class Attends(nn.Module):
    """Attentions in windows, and of heads whose results are seen as rows, as timm's Twins has both."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, q, k, v):
        whole = nn.functional.scaled_dot_product_attention(q[0], k[0], v[0])
        rows = whole.transpose(1, 2).reshape(whole.shape[0], whole.shape[2], -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, **self.how), rows


@pytest.mark.parametrize(
    "how", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.ones(6, 6).tril().bool()}]
)
def test_attentions_of_more_axes_than_onnx_has(how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    given = tuple(torch.randn(2, 2, 2, 6, 8) for _ in range(3))
    compiled = subtune.compile(Attends(**how).eval(), given, tune=False)
    for got, wanted in zip(compiled(*given), Attends(**how)(*given), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
