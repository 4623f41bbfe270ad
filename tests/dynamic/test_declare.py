"""Declared symbols: `--dynamic` and `dynamic={...}` as a domain, and every way to get them wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as h
import pytest
from hypothesis import given
from hypothesis import strategies as st

import subtune
from subtune.cli.main import main
from subtune.core.dims import parse
from subtune.core.errors import ShapeError, SubtuneError
from subtune.dynamic.declare import UNWEIGHTED, declared, domain_of
from subtune.frontends import instance, load
from subtune.options import Options
from tests.cached_attention import KEY, cached_attention

SYMBOLS = ("batch", "seq")


def of(given: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Values and weights of one symbol."""
    (symbol,) = domain_of({"seq": given}, ("seq",)).symbols
    return symbol.values, symbol.weights


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("1..4", (1, 2, 3, 4)),
        ("16,32,64", (16, 32, 64)),
        ("64, 16", (16, 64)),
        ("16..64/16", (16, 32, 48, 64)),
        ("1..3,8,16..32/8", (1, 2, 3, 8, 16, 24, 32)),
        ("7", (7,)),
        ("0..2", (0, 1, 2)),
        ("7..7", (7,)),
        (range(1, 4), (1, 2, 3)),
        (range(3, 0, -1), (1, 2, 3)),
        ([32, 16], (16, 32)),
        ({32, 16}, (16, 32)),
        (np.array([4, 2]), (2, 4)),
        (5, (5,)),
        (np.int64(5), (5,)),
        (np.array(5), (5,)),
        (iter((1, 2)), (1, 2)),
    ],
)
def test_values(given: Any, values: tuple[int, ...]) -> None:
    assert of(given) == (values, (1 / len(values),) * len(values))


@given(st.lists(st.integers(0, 600), min_size=1, unique=True))
def test_a_domain_is_read_as_it_is_written(values: list[int]) -> None:
    domain = domain_of({"seq": values}, ("seq",))
    name, _, text = str(domain).partition("=")
    assert domain_of({name: text}, ("seq",)) == domain


def test_weights_are_proportions() -> None:
    assert of({16: 9, 32: 3}) == ((16, 32), (0.75, 0.25))
    assert of({32: np.float32(0.5), 16: Fraction(3, 2)}) == ((16, 32), (0.75, 0.25))
    assert of({1: 1e308, 2: 1e308})[1] == (0.5, 0.5)


def test_a_value_without_a_weight_keeps_a_share() -> None:
    values, weights = of({1: 0, 2: 3, 3: 1, 4: 0})
    assert values == (1, 2, 3, 4)
    assert weights == pytest.approx((UNWEIGHTED / 2, 0.99 * 0.75, 0.99 * 0.25, UNWEIGHTED / 2))


@given(st.dictionaries(st.integers(1, 99), st.floats(0, 1e300), min_size=1).filter(lambda some: any(some.values())))
def test_weights_sum_to_one_and_none_is_zero(weights: dict[int, float]) -> None:
    _, found = of(weights)
    assert math.fsum(found) == pytest.approx(1)
    assert all(weight > 0 for weight in found) or min(filter(None, weights.values())) < 1e-300


@pytest.mark.parametrize("content", ['{"16": 3, "32": 1}', "[[16, 3], [32, 1.0]]"])
def test_weights_from_a_file(content: str, tmp_path: Path) -> None:
    file = tmp_path / "a=b:c.json"
    file.write_text(content)
    assert of(f"16,32:{file}") == ((16, 32), (0.75, 0.25))
    assert of(f"16,32,64:{file}")[1] == pytest.approx((0.99 * 0.75, 0.99 * 0.25, UNWEIGHTED))


def test_symbols_stand_in_the_models_order() -> None:
    domain = domain_of({"seq": [1, 2], "batch": "4"}, SYMBOLS)
    assert domain.names == SYMBOLS
    assert str(domain) == "batch=4 seq=1..2"


TEXTS = {
    "": "neither a whole number nor a range",
    "abc": "'abc' is neither",
    "1..": "'1..' is neither",
    "..4": "neither",
    "1-4": "neither",
    "1..4..8": "neither",
    "-1": "neither",
    "1.5": "neither",
    "²": "neither",
    "9" * 5000: "neither",
    "1,,2": "'' is neither",
    "1..4/": "neither",
    "5..1": r"5..1 is empty",
    "1..4/0": r"steps of 0 from 1 do not come to 4: write 1..4",
    "1..10/4": r"steps of 4 from 1 do not come to 10: write 1..9/4",
    "16,16": "the value 16 twice",
    "1..4,3": "the value 3 twice",
    "2147483648": "2147483648 is no size",
    "1..2147483648": "more than 1048576 values",
}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
def test_text_that_is_wrong(text: str) -> None:
    with pytest.raises(ShapeError, match=rf"^--dynamic seq={text[:20]}.*".replace("..", r"\.\.") + TEXTS[text]):
        of(text)


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        (range(0), "has no values"),
        ([], "has no values"),
        ({}, "has no values"),
        ([1, -1], "-1 is no size"),
        ([1.0], r"1\.0 is no whole number"),
        ([True], "True is no whole number"),
        (True, "True is no whole number"),
        (np.ones((2, 2), int), r"array\(\[1, 1\]\) is no whole number"),
        (["1"], "'1' is no whole number"),
        ([(1, 2)], "is no whole number"),
        ({"1": 1}, "'1' is no whole number"),
        (2.5, r"is 2\.5: give a range"),
        (None, "is None: give a range"),
        ([3, 3], "the value 3 twice"),
        ({1: -1}, "1 has the weight -1"),
        ({1: math.nan}, "the weight nan"),
        ({1: math.inf}, "the weight inf"),
        ({1: 10**400}, "the weight 1000"),
        ({1: "1"}, "the weight '1'"),
        ({1: True}, "the weight True"),
        ({1: None}, "the weight None"),
        ({1: 0, 2: 0.0}, "all weights are 0"),
    ],
)
def test_values_that_are_wrong(given: Any, pattern: str) -> None:
    with pytest.raises(ShapeError, match=rf"^dynamic\['seq'\].*{pattern}"):
        of(given)


FILES = {
    "": "is no JSON",
    "{": "is no JSON",
    "\xff": "is no JSON",
    "[" * 100_000: "is no JSON",
    "3": "has no weights in it",
    "{}": "has no weights in it",
    "[]": "has no weights in it",
    "null": "has no weights in it",
    '{"a": 1}': r'has \["a", 1\] in it',
    '{"-1": 1}': "in it, which is no value",
    '{"weights": {"1": 2}}': "in it, which is no value",
    '[{"1": 2}]': "in it, which is no value",
    "[[1, 2, 3]]": "in it, which is no value",
    "[1, 2]": "has 1 in it",
    "[[1.0, 2]]": "in it, which is no value",
    "[[true, 2]]": "in it, which is no value",
    '{"1": 1, "01": 1}': "two weights for 1",
    '{"1": 1, "1": 2}': "two weights for 1",
    "[[1, 2], [1, 2]]": "two weights for 1",
    '{"9": 1}': "a weight for 9, which is none of the values",
    '{"1": -2}': "1 has the weight -2",
    '{"1": NaN}': "the weight nan",
    '{"1": "2"}': "the weight '2'",
    '{"1": [2]}': "the weight",
    '{"1": 0}': "all weights are 0",
}


@pytest.mark.parametrize("content", FILES, ids=lambda content: content[:20])
def test_files_that_are_wrong(content: str, tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ShapeError, match=FILES[content]) as caught:
        of(f"1..4:{file}")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("file", ["", "none.json", ".", "a\0b"])
def test_files_that_are_none(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShapeError, match=r"cannot be read|is no JSON"):
        of(f"1..4:{file}")


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ({"batch": 1}, r"no sizes for 'seq': .* --dynamic seq=1\.\.8, .* --shape seq=1\."),
        ({}, r"no sizes for 'batch', 'seq': .* --dynamic batch=1\.\.8 --dynamic seq=1\.\.8, "),
        ({"batch": 1, "seq": 1, "sek": 1}, r"no symbol 'sek' \(did you mean seq\?\); it has 'batch', 'seq'"),
        ({3: 1}, "no symbol 3; it has"),
        ({"batch": 1, "seq": "batch"}, "'batch' is neither a whole number"),
    ],
)
def test_symbols_that_are_wrong(given: dict, pattern: str) -> None:
    with pytest.raises(ShapeError, match=pattern):
        domain_of(given, SYMBOLS)


# -- of a model --------------------------------------------------------------------------------------------


def added(*dims: Iterable[int | str | None]) -> onnx.ModelProto:
    """The sum of inputs `x0`, `x1` of these dimensions."""
    inputs = [h.make_tensor_value_info(f"x{i}", 1, list(each)) for i, each in enumerate(dims)]
    y = h.make_tensor_value_info("y", 1, None)
    return h.make_model(h.make_graph([h.make_node("Add", ["x0", "x1"], ["y"])], "g", inputs, [y]), ir_version=8)


def test_a_domain_and_inputs_of_a_model() -> None:
    options = Options(shapes={"batch": 2}, dynamic={"seq": [1, 4], "past": "7"})
    domain, inputs = declared(cached_attention(), options)
    assert str(domain) == "seq=1,4 past=7"
    found = [instance(inputs, values, options.shapes)["attention_mask"] for values, _ in domain.instances()]
    assert found == [(2, 8), (2, 11)]


def test_dimensions_without_names_that_are_one() -> None:
    model = added([None, 3], [None, 3])
    options = Options(dynamic={"x1.0": "x0.0", "x0.0": [2, 5]})
    domain, inputs = declared(model, options)
    assert str(domain) == "x0.0=2,5"
    assert [str(one) for one in inputs] == ["x0: float32[x0.0, 3]", "x1: float32[x0.0, 3]"]
    shapes = instance(inputs, domain.greatest)
    assert [spec.shape for spec in load(model, shapes).inputs] == [(5, 3), (5, 3)]


@pytest.mark.parametrize("total", ["past+seq", parse("past + seq")])
def test_a_relation_that_the_exporter_left_out(total: object) -> None:
    options = Options(dynamic={"total": total, "seq": [1, 4], "past": 3, "batch": 2})
    domain, inputs = declared(cached_attention("total"), options)
    assert str(domain) == "batch=2 seq=1,4 past=3"
    assert str(inputs[1]) == "attention_mask: int64[batch, past + seq]"


def test_a_relation_to_what_is_fixed() -> None:
    options = Options(shapes={"past": (3,), "batch": 2}, dynamic={"total": "past + 2*seq - seq", "seq": [1, 4]})
    domain, inputs = declared(cached_attention("total"), options)
    assert str(domain) == "seq=1,4"
    assert load(cached_attention("total"), instance(inputs, {"seq": 4}, options.shapes)).inputs[1].shape == (2, 7)


def test_relations_of_relations() -> None:
    options = Options(dynamic={"seq": "past", "past": "batch + 1", "batch": [1, 2]})
    domain, inputs = declared(cached_attention(), options)
    assert str(domain) == "batch=1..2"
    assert str(inputs[1]) == "attention_mask: int64[batch, 2*batch + 2]"


@pytest.mark.parametrize(
    ("dynamic", "pattern"),
    [
        ({"seq": "seq + 1"}, "seq=seq . 1 says of 'seq' what it is by itself"),
        ({"seq": "past", "past": "seq"}, "seq=past says of 'seq' what it is by itself"),
        ({"seq": "pats"}, r"seq=pats is neither of values nor of symbols: .* 'pats' \(did you mean past\?\)"),
        ({"seq": "past"}, "no sizes for 'batch', 'past'"),
        ({3: 1}, "the key 3, which is no name"),
        ({("seq", "past"): 1}, "which is no name"),
    ],
)
def test_relations_that_are_wrong(dynamic: dict, pattern: str) -> None:
    with pytest.raises(ShapeError, match=pattern):
        declared(cached_attention(), Options(dynamic=dynamic))


MISTAKES = {
    "a misspelt symbol": ("--dynamic sek=1..4", "no symbol 'sek' (did you mean seq?)"),
    "a symbol left out": ("--dynamic seq=1..4", "no sizes for 'batch', 'past'"),
    "none of them": ("", "for example --dynamic batch=1..8 --dynamic seq=1..8 --dynamic past=1..8, or give"),
    "fixed and declared": ("--shape seq=3 --dynamic seq=1..4", "fixed by --shape and declared by --dynamic"),
    "fixed by a shape": ("--shape input_ids=1,3 --dynamic seq=1..4", "fixed by --shape and declared by --dynamic"),
    "an input": ("--dynamic input_ids=1..4", "'input_ids' is an input, input_ids: int64[batch, seq]"),
    "a dimension with a name": ("--dynamic input_ids.1=1..4", "of the input 'input_ids' is called seq"),
    "a dimension of the model": (f"--dynamic {KEY}.1=1..4", "is fixed to 2 by the model"),
    "a relation to nothing": ("--dynamic seq=pats", "no symbol 'pats' (did you mean past?)"),
    "an empty range": ("--dynamic seq=5..1", "5..1 is empty"),
    "no values": ("--dynamic seq", "names no symbol"),
    "no name": ("--dynamic =1..4", "names no symbol"),
    "twice": ("--dynamic seq=1 --dynamic seq=2", "'seq' twice"),
    "no file": ("--dynamic seq=1..4:none.json --shape batch=1 --shape past=1", "'none.json' cannot be read"),
}


@pytest.mark.parametrize("command", ["compile", "inspect", "bench"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(
    command: str, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(cached_attention(), "m.onnx")
    arguments, message = MISTAKES[mistake]
    assert main([command, "m.onnx", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("subtune: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("*.subtune"))


def test_a_static_model_has_nothing_to_declare(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["compile", "zoo:mlp", "--dynamic", "batch=1..4", "-o", str(tmp_path / "m.subtune")]) == 2
    assert "all of its inputs have fixed shapes" in capsys.readouterr().err


def test_a_suite_takes_no_symbols(capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "--suite", "cpu", "--dynamic", "batch=1..4"]) == 2
    assert "--dynamic is for one model" in capsys.readouterr().err


def test_dynamic_is_a_mapping() -> None:
    with pytest.raises(ShapeError, match=r"dynamic is 'seq=1\.\.4': give the values by their symbols"):
        subtune.compile(cached_attention(), dynamic="seq=1..4")


def test_inspect_shows_the_largest_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(cached_attention(), "m.onnx")
    flags = ["--dynamic", "seq=1..5", "--dynamic", "past=1..6", "--shape", "batch=3"]
    assert main(["inspect", "m.onnx", "--json", "--db", "t.db", *flags]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown)
    assert "3,2,11,4" in shown.replace(" ", "").replace("\n", "")


@pytest.mark.parametrize("way", ["command line", "Python"])
def test_a_domain_comes_to_the_driver(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(cached_attention(), "m.onnx")
    calls: list[tuple[Any, Path, Options]] = []

    def stand_in(*given: Any) -> Any:
        calls.append(given)
        raise SubtuneError("seen")

    monkeypatch.setattr("subtune.driver.compile_dynamic", stand_in)
    if way == "Python":
        with pytest.raises(SubtuneError, match="seen"):
            subtune.compile("m.onnx", output="o.subtune", shapes={"batch": 1}, dynamic={"seq": range(1, 5), "past": 2})
    else:
        flags = ["--dynamic", "seq=1..4", "--dynamic", "past=2", "--shape", "batch=1"]
        assert main(["compile", "m.onnx", "-o", "o.subtune", *flags]) == 2
    ((model, output, options),) = calls
    domain, inputs = declared(model, options)
    assert (model, output.name, str(domain)) == ("m.onnx", "o.subtune", "seq=1..4 past=2")
    assert options.shapes is not None
    assert [len(one.shape) for one in inputs] == [2, 2, 4]
