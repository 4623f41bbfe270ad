"""Relay's `?`, of text and JSON: what it is called, what gives it a size, and what is said where nothing does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from subtune.cli.main import main
from subtune.core.errors import ModelError, ShapeError, UnsupportedOpsError
from subtune.frontends import Parameters, instance, load, symbolic_inputs, symbols_of
from tests.frontends.relay.run import executable
from tests.frontends.relay.test_json import Document

DENSE = """#[version = "0.0.5"]
def @main(%x: Tensor[(?, 3), float32], %w: Tensor[(4, 3), float32], %y: Tensor[(?, 4), float32]) -> Tensor[(?, 4), float32] {
  %0 = nn.dense(%x, %w, units=4) /* ty=Tensor[(?, 4), float32] */;
  add(%0, nn.relu(%y)) /* ty=Tensor[(?, 4), float32] */
}
"""  # noqa: E501
W = np.arange(12, dtype=np.float32).reshape(4, 3) - 5


def body(params: str, *lines: str) -> str:
    """A module of one function."""
    return f"def @main({params}) {{\n" + "\n".join(lines) + "\n}\n"


def shapes_at(text: str, **values: int) -> list[tuple[int, ...]]:
    """Those of the outputs where the symbols of `text` have these values; `x_0` means `x.0`."""
    sizes = {name.replace("_", "."): value for name, value in values.items()}
    parameters = Parameters(random=True)
    inputs = symbolic_inputs(text, None, parameters)
    assert set(symbols_of(inputs)) == set(sizes)
    return [spec.shape for spec in load(text, instance(inputs, sizes), parameters).outputs]


# -- names and sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "symbols"),
    [
        ("%x: Tensor[(?, 3), float32]", ["x.0"]),
        ("%x: Tensor[(?, ?, 3), float32], %y: Tensor[(2, ?), float32]", ["x.0", "x.1", "y.1"]),
        ("%input.1: Tensor[(?, 3), float32]", ["input.1.0"]),
        ("%serving:0: Tensor[(?, 3), float32]", ["serving_0.0"]),
        ("%t: (Tensor[(?, 3), float32], (Tensor[(2, ?), float32],))", ["t_0.0", "t_1_0.1"]),
        ("%t: (Tensor[(?), float32],), %t_0: Tensor[(?), float32]", ["t_0.0", "t_0_1.0"]),
        ("%x: Tensor[(2, 3), float32]", []),
    ],
)
def test_symbols_are_called_by_input_and_axis(params: str, symbols: list[str]) -> None:
    text = body(params, "()")
    inputs = symbolic_inputs(text)
    assert list(symbols_of(inputs)) == symbols
    fixed = symbolic_inputs(text, dict.fromkeys(symbols, 5))
    assert [one.shape for one in fixed] == list(instance(inputs, dict.fromkeys(symbols, 5)).values()) or not symbols


@pytest.mark.parametrize("boxed", [False, True])
def test_any_of_the_json_form(boxed: bool) -> None:
    d = Document(boxed)
    x, y = d.var("x", d.type((None, 3), "float32")), d.var("y", d.type((None, 3), "float32"))
    document = d.dump(d.module({"main": d.function([x, y], d.call("add", [x, y]))}))
    assert [str(one) for one in symbolic_inputs(document)] == ["x: float32[x.0, 3]", "y: float32[y.0, 3]"]
    assert [spec.shape for spec in load(document, {"x.0": 5, "y.0": 5}).outputs] == [(5, 3)]
    with pytest.raises(ShapeError, match=r"for example --dynamic x\.0=1\.\.8"):
        load(document)


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ({"x": (2, 3), "y.0": 2}, [(2, 3), (2, 4)]),
        ({"x.0": 2, "x.1": 3, "y": (2, 4)}, [(2, 3), (2, 4)]),
        ({"x.0": (2,), "x": (2, 3), "y.0": 2}, [(2, 3), (2, 4)]),
    ],
)
def test_shapes_and_axes_give_sizes(shapes: dict, sizes: list[tuple[int, ...]]) -> None:
    imported = load(DENSE, shapes, Parameters({"w": W}))
    assert [spec.shape for spec in imported.inputs] == sizes
    assert imported.notes == ("inputs: x: float32[2, 3], y: float32[2, 4]",)  # `?` agrees with every size
    x, y = (np.random.default_rng(0).standard_normal(size).astype(np.float32) for size in sizes)
    (found,) = executable(imported.mod)([x, y])
    np.testing.assert_allclose(found, x @ W.T + np.maximum(y, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x.1": 4}, r"--shape x\.1=4 contradicts the model, where x is Tensor\[\(\?, 3\), float32\]"),
        ({"x": (2, 3), "x.0": 4}, r"--shape x\.0=4 contradicts the model, where x is Tensor\[\(2, 3\), float32\]"),
        ({"x": (2, 4)}, r"--shape x=2,4 contradicts the model, where it is Tensor\[\(\?, 3\), float32\]"),
        ({"x.0": (2, 3)}, r"--shape x\.0 is of one dimension of x: give one size, not 2"),
        ({"x.0": -1}, "has -1, which is no size"),
        ({"x": (-1, 3)}, "has -1, which is no size"),
        ({"w.0": 4}, r"--shape w\.0: the model's inputs are x, y"),
    ],
)
def test_sizes_that_are_wrong(shapes: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        load(DENSE, shapes, Parameters({"w": W}))


# -- what is inferred again --------------------------------------------------------------------------------


def test_types_inside_are_inferred_again() -> None:
    text = """def @f(%a: Tensor[(?, 4), float32]) -> Tensor[(?, 4), float32] { nn.relu(%a) }
    def @main(%x: Tensor[(?, ?, 4), float32]) -> Tensor[(?, 2), float32] {
      let %y: Tensor[(?, 4), float32] = @f(reshape(%x, newshape=[-1, 4]));
      let %g = fn (%b: Tensor[(?, 4), float32]) -> Tensor[(?, 2), float32] {
        strided_slice(%b, begin=[0, 0], end=[-1, 2], strides=[1, 1], slice_mode="size")
      };
      (%g(%y), reshape(%x, newshape=[0, -1]), reshape_like(%y, %x))
    }"""
    assert shapes_at(text, x_0=3, x_1=5) == [(15, 2), (3, 20), (3, 5, 4)]


X = "%x: Tensor[(?, 8), float32]"
ONE = 'full(1i64, shape=[1], dtype="int64")'


@pytest.mark.parametrize(
    ("lines", "shape"),
    [
        (["%1 = expand_dims(take(%0, 0i64, axis=0), axis=0); %2 = concatenate((%1, full(-1i64, shape=[1])));",
          "dyn.reshape(%x, %2)"], (5, 8)),
        ([f"%1 = concatenate(({ONE}, %0)); dyn.broadcast_to(%x, %1)"], (1, 5, 8)),
        (["dyn.full(2f, %0)"], (5, 8)),
        (["dyn.zeros(%0)"], (5, 8)),
        (["%1 = zeros_like(%0); %2 = subtract(%0, 1i64); %3 = ones_like(%0);",
          "dyn.strided_slice(%x, %1, %2, %3)"], (4, 7)),
        # as exporters write a slice along some axes only
        ([f"%1 = scatter_elements(zeros_like(%0), {ONE}, full(2i64, shape=[1]), axis=0);",
          f"%2 = scatter_elements(%0, {ONE}, full(7i64, shape=[1]), axis=0);",
          "dyn.strided_slice(%x, %1, %2, ones_like(%0))"], (5, 5)),
        ([f"%1 = gather(%0, {ONE}, axis=0); %2 = gather_nd(%0, full(0i64, shape=[1, 1]));",
          "dyn.reshape(%x, concatenate((%1, %2)))"], (8, 5)),
        (["dyn.tile(%x, stack((take(%0, 0i64, axis=0), 1i64)))"], (25, 8)),
        (["arange(0i64, take(%0, 0i64, axis=0), 1i64)"], (5,)),
        (["if (greater(take(%0, 0i64, axis=0), 9i64)) { %x } else { transpose(%x) }"], (8, 5)),
    ],
)  # fmt: skip
def test_sizes_that_are_computed_of_sizes(lines: list[str], shape: tuple[int, ...]) -> None:
    assert shapes_at(body(X, '%0 = shape_of(%x, dtype="int64");', *lines), x_0=5) == [shape]


def test_a_reshape_that_has_every_size_is_told_what_to_write() -> None:
    text = body("%x: Tensor[(?, 8), float32]", "reshape(%x, newshape=[1, 2, 4])")
    assert shapes_at(text, x_0=1) == [(1, 2, 4)]
    with pytest.raises(
        UnsupportedOpsError, match=r"make \[1, 2, 4\] of shape \[3, 8\]: .* write -1 for one that varies"
    ):
        shapes_at(text, x_0=3)


# -- inputs and weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "line", "inputs"),
    [
        ("%x: Tensor[(?, 4), float32], %w: Tensor[(?, 4), float32]", "nn.dense(%x, %w, units=None)", ["x", "w"]),
        ("%x: Tensor[(1, ?, 4), float32]", "nn.batch_matmul(%x, %x, transpose_b=True)", ["x"]),
        ("%x: Tensor[(2, 4), float32], %bias: Tensor[(?, 4), float32]", "add(nn.relu(%x), %bias)", ["x", "bias"]),
        ("%x: Tensor[(?, 4), float32], %bias: Tensor[(4), float32]", "add(nn.relu(%x), %bias)", ["x"]),
    ],
)
def test_what_has_no_size_is_no_weight(params: str, line: str, inputs: list[str]) -> None:
    found = symbolic_inputs(body(params, line), None, Parameters(random=True))
    assert [one.name for one in found] == inputs


def test_what_has_a_value_is_a_weight_all_the_same() -> None:
    text = body("%x: Tensor[(?, 3), float32], %w: Tensor[(?, 3), float32]", "nn.dense(%x, %w, units=None)")
    parameters = Parameters({"w": W})
    assert [one.name for one in symbolic_inputs(text, None, parameters)] == ["x"]
    assert [spec.shape for spec in load(text, {"x.0": 7}, parameters).outputs] == [(7, 4)]
    with pytest.raises(ModelError, match=r"%w at 1:\d+ is Tensor\[\(\?, 3\), float32\] and has no value: give one by"):
        load(text, {"x.0": 7}, Parameters(random=True, inputs=("x",)))


# -- what the command line says ----------------------------------------------------------------------------

MISTAKES = {
    "nothing": ("", "its shape as --shape x=D0,D1,... or compile for a range, for example --dynamic x.0=1..8; %y at"),
    "one of two": ("--dynamic x.0=1..4", "no sizes for 'y.0': declare a range, for example --dynamic y.0=1..8"),
    "another input": ("--dynamic z.0=1..4", "no symbol 'z.0' (did you mean y.0 or x.0?); it has 'x.0', 'y.0'"),
    "an input": ("--dynamic x=1..4", "'x' is an input, x: float32[x.0, 3]; the model's symbols: 'x.0', 'y.0'"),
    "a weight": ("--dynamic w.0=1..4", "no symbol 'w.0'"),
    "no axis": ("--dynamic x.2=1..4", "'x' has dimensions 0 to 1, and 'x.2' is none of them: x: float32[x.0, 3]"),
    "an axis with a size": ("--dynamic x.1=1..4", "1 of the input 'x' is fixed to 3 by the model: write ? for it"),
    "fixed, too": ("--dynamic x.0=1..4 --shape x=2,3", "fixed by --shape and declared by --dynamic"),
    "another size": ("--dynamic y.0=1..4 --shape x.1=4", "--shape x.1=4 contradicts the model, where x is Tensor"),
    "a relation to nothing": ("--dynamic x.0=1..4 --dynamic y.0=z.0", "y.0=z.0 is neither of values nor of symbols"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path, out = tmp_path / "dense.relay", tmp_path / "dense.subtune"
    path.write_text(DENSE)
    arguments, message = MISTAKES[mistake]
    assert main(["compile", str(path), "--random-params", *arguments.split(), "-o", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("subtune: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()
