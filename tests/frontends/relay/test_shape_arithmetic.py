"""Shapes that a module computes from shapes are known while it is imported."""

from __future__ import annotations

import numpy as np
import pytest

from subtune.core.errors import UnsupportedOpsError
from subtune.frontends.onnx.ops.node import array_const
from subtune.frontends.parameters import Parameters
from subtune.frontends.relay.fold import fold
from subtune.frontends.relay.load import load_relay
from subtune.frontends.relay.ops.converters import CONVERTERS
from subtune.frontends.relay.ops.refused import REFUSED

HEAD = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(2, 3, 4, 6), float32]) {\n'


def outputs(*lines: str) -> list[tuple[int, ...]]:
    imported = load_relay(HEAD + "\n".join(lines) + "\n}\n", {}, Parameters())
    return [tuple(spec.shape) for spec in imported.outputs]


def test_flatten_by_shape_of() -> None:
    assert outputs(
        '%0 = shape_of(%x, dtype="int64");',
        "%1 = take(%0, 0i64, axis=0);",
        "%2 = expand_dims(%1, axis=0);",
        '%3 = (%2, full(-1i64, shape=[1], dtype="int64"));',
        "%4 = concatenate(%3);",
        "dyn.reshape(%x, %4, newshape=[])",
    ) == [(2, 72)]


def test_a_size_of_slices_and_products() -> None:
    assert outputs(
        '%0 = shape_of(%x, dtype="int32");',
        "%1 = strided_slice(%0, begin=[-2], end=[4], strides=[1]);",
        "%2 = prod(%1, axis=[0], keepdims=True);",
        "%3 = strided_slice(%0, begin=[0], end=[2]);",
        "%4 = reverse(%3, axis=0);",
        "%5 = concatenate((%4, %2));",
        "dyn.reshape(%x, %5)",
    ) == [(3, 2, 24)]


def test_floats_on_the_way() -> None:
    assert outputs(
        '%0 = shape_of(%x, dtype="int32");',
        '%1 = cast(%0, dtype="float32");',
        "%2 = multiply(%1, 0.5f);",
        "%3 = floor(%2);",
        '%4 = cast(%3, dtype="int64");',
        "%5 = split(%4, indices_or_sections=[2]);",
        "%6 = %5.1;",
        "%7 = maximum(%6, 1i64);",
        'dyn.zeros(%7, shape=[], dtype="float32")',
    ) == [(2, 3)]


def test_the_largest_of_a_batch_of_images() -> None:
    assert outputs(
        '%0 = shape_of(%x, dtype="float32");',
        "%1 = max(%0);",
        '%2 = cast(%1, dtype="int32");',
        "%3 = (%2, 5);",
        "%4 = stack(%3, axis=0);",
        'dyn.zeros(%4, shape=[], dtype="float32")',
    ) == [(6, 5)]


def test_a_range_of_a_size() -> None:
    assert outputs(
        '%0 = ndarray_size(%x, dtype="int32");',
        "%1 = floor_divide(%0, 5);",
        'arange(0, %1, 1, start=0, stop=28, step=1, dtype="int32")',
    ) == [(28,)]


def test_a_shape_of_values_is_refused() -> None:
    with pytest.raises(UnsupportedOpsError, match=r"dyn\.reshape at .* needs its target shape .* at compile time"):
        outputs('%0 = cast(%x, dtype="int64");', "%1 = reshape(%0, newshape=[-1]);", "dyn.reshape(%x, %1)")


I64 = np.int64([[7, -7, 5], [2, 3, -4]])
THREE = np.int64([3, 3, -3])


@pytest.mark.parametrize(
    ("op", "args", "attrs", "like"),
    [
        ("divide", (I64, THREE), {}, np.trunc(I64 / THREE).astype("int64")),
        ("divide", (np.uint8([200, 7]), np.uint8([3, 2])), {}, np.uint8([66, 3])),
        ("divide", (np.float32([1]), np.float32([4])), {}, np.float32([0.25])),
        ("floor_divide", (I64, THREE), {}, I64 // THREE),
        ("floor_mod", (I64, THREE), {}, I64 % THREE),
        ("mod", (I64, THREE), {}, np.fmod(I64, THREE)),
        ("power", (np.int32([2]), np.int32([5])), {}, np.int32([32])),
        ("negative", (I64,), {}, -I64),
        ("ceil", (np.float32([1.5]),), {}, np.float32([2])),
        ("clip", (I64,), {"a_min": 0.0, "a_max": 4.0}, np.clip(I64, 0, 4)),
        ("cast", (np.float32([-1.5, 2.5]),), {"dtype": "int32"}, np.int32([-1, 2])),
        ("cast_like", (I64, np.float32(1)), {}, I64.astype("float32")),
        ("bitwise_and", (I64, THREE), {}, I64 & THREE),
    ],
)
def test_folded_as_computed(op: str, args: tuple, attrs: dict, like: np.ndarray) -> None:
    found = fold(op, tuple(array_const(np.asarray(a)) for a in args), attrs)
    assert found is not None
    assert found.dtype == like.dtype
    np.testing.assert_array_equal(found, like)


@pytest.mark.parametrize("op", ["divide", "floor_divide", "mod", "floor_mod", "trunc_divide"])
def test_division_by_zero_is_not_folded(op: str) -> None:
    zero = array_const(np.zeros(2, np.int64))
    assert fold(op, (zero, zero), {}) is None


def test_too_large_a_number_is_not_cast() -> None:
    assert fold("cast", (array_const(np.float32([1e20])),), {"dtype": "int32"}) is None


def test_refused_operators_have_no_converter() -> None:
    assert not REFUSED.keys() & CONVERTERS.keys()
