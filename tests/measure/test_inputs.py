"""Inputs are legal for the workload, hard on the kernel, and the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx, topi

from subtune.core.workload import Workload
from subtune.measure.degrees import degree
from subtune.measure.hazards import SETS, hazards
from subtune.measure.inputs import make_input, make_inputs, make_sets, repeated
from subtune.measure.verdict import disagreement
from tests.backends import workloads


def workload(*tensors, constants=()):
    func = te.create_prim_func(list(tensors))
    return Workload.of(func.with_attr("layout_free_buffers", list(constants)), 1)


def elementwise(dtype, compute):
    a = te.placeholder((64, 64), dtype, name="a")
    b = te.placeholder((64, 64), dtype, name="b")
    return workload(a, b, te.compute((64, 64), lambda i, j: compute(a[i, j], b[i, j])))


def test_indices_stay_within_the_dim_they_index():
    table = te.placeholder((10, 8), "float32", name="table")
    index = te.placeholder((500,), "int64", name="index")
    gather = workload(table, index, topi.take(table, index, axis=0))
    dangers = hazards(gather)
    assert dangers.index_extent == {1: 10}
    for name in SETS:
        indices = make_inputs(gather, name, dangers)[1]
        assert indices.dtype == np.int64
        assert indices.min() >= 0
        assert indices.max() <= 9
    assert {0, 9} <= set(make_inputs(gather, "adversarial", dangers)[1].tolist())


def test_a_constant_table_ascends_where_kernels_are_timed():
    image = te.placeholder((10, 8), "float32", name="image")
    table = te.placeholder((50, 2), "int64", name="table")
    resized = te.compute((50, 8), lambda i, j: image[table[i, 0], j] + image[table[i, 1], j], name="resized")
    given = {constants: workload(image, table, resized, constants=constants) for constants in ((), (1,))}
    steps = {
        constants: [np.diff(make_input(one, 1, name, hazards(one)).reshape(-1)) for name in SETS]
        for constants, one in given.items()
    }
    assert [bool((step >= 0).all()) for step in steps[1,]] == [True, False, False, True]
    assert not any((step >= 0).all() for step in steps[()])


def test_a_constant_may_be_a_number():
    x = te.placeholder((4, 4), "float32", name="x")
    scale = te.placeholder((), "float32", name="scale")
    scaled = workload(x, scale, te.compute((4, 4), lambda i, j: x[i, j] * scale()), constants=(1,))
    for name in SETS:
        number = make_input(scaled, 1, name, hazards(scaled))
        assert isinstance(number, np.ndarray)
        assert number.shape == ()


def test_an_index_computed_in_an_earlier_block_is_found():
    table = te.placeholder((7, 3), "float32", name="table")
    index = te.placeholder((50,), "int32", name="index")
    doubled = te.compute((50,), lambda i: index[i] + 0, name="doubled")
    gather = workload(table, index, te.compute((50, 3), lambda i, j: table[doubled[i], j]))
    assert hazards(gather).index_extent[1] == 7


def test_integer_divisors_are_never_zero():
    division = elementwise("int32", lambda a, b: tirx.floordiv(a, b))
    dangers = hazards(division)
    assert dangers.divides
    assert not hazards(elementwise("int32", lambda a, b: tirx.floordiv(a, 3) + b)).divides
    for name in SETS:
        assert (make_inputs(division, name, dangers)[1] != 0).all()


def test_what_is_computed_in_int32_and_widened_does_not_overflow():
    """What LLVM then makes of it depends on how a schedule stores it."""
    product = elementwise("int32", lambda a, b: (a * b).astype("int64"))
    dangers = hazards(product)
    assert dangers.widens
    assert not hazards(elementwise("int32", lambda a, b: a.astype("int64") * b.astype("int64"))).widens
    for name in SETS:
        a, b = (array.astype(np.int64) for array in make_inputs(product, name, dangers)[:2])
        assert np.abs(a * b).max() <= np.iinfo(np.int32).max


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_adversarial_integers_hold_both_extremes(dtype):
    addition = elementwise(dtype, lambda a, b: tirx.max(a, b))
    array = make_inputs(addition, "adversarial", hazards(addition))[0]
    assert array.min() == np.iinfo(dtype).min
    assert array.max() == np.iinfo(dtype).max


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_adversarial_floats_hold_denormals_both_zeros_and_many_magnitudes(dtype):
    addition = elementwise(dtype, lambda a, b: a + b)
    array = make_inputs(addition, "adversarial", hazards(addition))[0]
    wide = array.astype(np.float64)
    assert np.isfinite(wide).all()
    assert np.count_nonzero(wide) > wide.size / 2
    zeros = wide[wide == 0]
    assert set(np.signbit(zeros)) == {True, False}
    smallest_normal = {"float64": 2.2e-308, "float32": 1.1e-38, "float16": 6.1e-5, "bfloat16": 1.1e-38}[dtype]
    assert (np.abs(wide[wide != 0]) < smallest_normal).any()
    largest, typical = np.abs(wide).max(), np.median(np.abs(wide))
    assert largest > 50 * typical


def test_floats_that_become_integers_stay_in_range():
    a = te.placeholder((4096,), "float32", name="a")
    quantise = workload(a, te.compute((4096,), lambda i: a[i].astype("int8")))
    dangers = hazards(quantise)
    assert dangers.casts_to_int
    for name in SETS:
        assert np.abs(make_inputs(quantise, name, dangers)[0]).max() <= 128


def test_what_is_clipped_is_not_all_cancellation():
    """ReLU6 after a sum: values on both sides of both bounds, none that drowns the others."""
    clipped = elementwise("float32", lambda a, b: tirx.min(tirx.max(a + b, tirx.const(0.0)), tirx.const(6.0)))
    dangers = hazards(clipped)
    assert dangers.clips
    assert not hazards(elementwise("float32", lambda a, b: tirx.max(a + b, tirx.const(0.0)))).clips
    assert not hazards(elementwise("float32", lambda a, b: tirx.min(a, b))).clips
    array = make_inputs(clipped, "adversarial", dangers)[0]
    assert {array.min(), array.max()} == {-8.0, 8.0}
    assert ((array > 0) & (array < 1e-39)).any()


def test_a_product_of_a_row_neither_overflows_nor_vanishes():
    """In another order it would do so elsewhere, and infinity times zero is no number."""
    x = te.placeholder((8, 2000), "float32", name="x")
    dangers = hazards(workload(x, topi.prod(x, axis=1)))
    assert dangers.multiplies
    assert "special" not in dangers.sets
    (array,) = make_inputs(workload(x, topi.prod(x, axis=1)), "adversarial", dangers)
    assert np.abs(array.prod(axis=1)).min() > 0
    assert np.isfinite(array.prod(axis=1)).all()
    assert not hazards(elementwise("float32", lambda a, b: a * b)).multiplies


def test_what_is_rounded_to_float16_stays_in_its_range():
    """A norm of float32 values, scaled and shifted: beyond float16's range only sums that cancel would be compared."""
    rows, length = 16, 96
    x = te.placeholder((rows, length), "float32", name="x")
    scale, shift = (te.placeholder((length,), "float32", name=name) for name in ("scale", "shift"))
    normal = topi.nn.layer_norm(x, scale, shift, axis=[1])
    norm = workload(x, scale, shift, te.compute((rows, length), lambda i, j: normal[i, j].astype("float16")))
    dangers = hazards(norm)
    assert dangers.narrows
    assert not hazards(elementwise("float32", lambda a, b: a + b)).narrows
    assert not hazards(elementwise("float16", lambda a, b: (a + b).astype("float32"))).narrows
    arrays = make_inputs(norm, "adversarial", dangers)
    assert all(np.abs(array).max() <= 200 for array in arrays)

    def computed(dtype, order):
        """The sums over each row in the order that is given."""
        given, *factors = (array.astype(dtype) for array in arrays)
        mean = given[:, order].cumsum(1)[:, -1:] / dtype(length)
        variance = np.square(given - mean)[:, order].cumsum(1)[:, -1:] / dtype(length)
        return ((given - mean) / np.sqrt(variance + dtype(1e-5)) * factors[0] + factors[1]).astype("float16")

    forth, back = np.arange(length), np.arange(length)[::-1]
    assert disagreement(computed(np.float32, back), computed(np.float32, forth), True) == ""
    assert np.isfinite(computed(np.float64, forth)).mean() > 0.99


def dense(then):
    """Of halves, summed in float32; `then` is applied to the sums."""
    x, w = (te.placeholder(shape, "float16", name=name) for shape, name in (((8, 768), "x"), ((768, 32), "w")))
    k = te.reduce_axis((0, 768), "k")

    def term(i, j):
        return te.sum(x[i, k].astype("float32") * w[k, j].astype("float32"), axis=k)

    return workload(x, w, then(te.compute((8, 32), term)))


def test_sums_that_a_function_bounds_are_moderate():
    """Of sums of 1e5 that cancel, rounding leaves 1e-2: as much of tanh's 1 is more than float32's tolerance."""
    bounded = dense(topi.tanh)
    dangers = hazards(bounded)
    assert dangers.exponentiates
    assert not hazards(dense(topi.nn.relu)).exponentiates
    arrays = make_inputs(bounded, "adversarial", dangers)
    assert all(np.abs(array).max() <= 8 for array in arrays)
    x, w = (array.astype(np.float32) for array in arrays)
    forth, back = (np.tanh((x[:, None, order] * w.T[None, :, order]).cumsum(2)[..., -1])
                   for order in (np.arange(768), np.arange(768)[::-1]))  # fmt: skip
    assert disagreement(forth, back, True) == ""


def test_norms_of_rounded_sums_see_no_positive_numbers():
    """Sums of positive numbers are nearly equal: less their mean, what is left is mostly what rounding did."""

    def normalised(sums):
        one, zero = (topi.full((32,), "float32", value) for value in (1.0, 0.0))
        return topi.nn.layer_norm(topi.cast(topi.cast(sums, "float16"), "float32"), one, zero, axis=[1])

    def variance(sums):
        rounded, j = topi.cast(topi.cast(sums, "bfloat16"), "float32"), te.reduce_axis((0, 32), "j")
        mean = topi.divide(topi.sum(rounded, axis=1), 32.0)
        square = lambda i: (rounded[i, j] - mean[i]) * (rounded[i, j] - mean[i])  # noqa: E731
        return te.compute((8,), lambda i: te.sum(square(i), axis=j))

    assert "positive" not in hazards(dense(normalised)).sets
    assert "positive" not in hazards(dense(variance)).sets
    assert "positive" in hazards(dense(topi.nn.relu)).sets


def test_inputs_are_repeatable_and_differ_between_arguments_and_sets():
    addition = elementwise("float32", lambda a, b: a + b)
    dangers = hazards(addition)
    sets = {name: make_inputs(addition, name, dangers) for name in SETS}
    for name in SETS:
        again = make_inputs(addition, name, dangers)
        assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(sets[name], again, strict=True))
        assert not np.array_equal(sets[name][0], sets[name][1], equal_nan=True)
    assert not np.array_equal(sets["random"][0], sets["positive"][0])
    assert (sets["positive"][0] > 0).all()


def test_infinity_does_not_meet_what_a_function_rounds_to_zero():
    """1 + erf(-3.89) is 6e-8 or 0, as the polynomial has it; times infinity, that is infinity or NaN."""

    def gelu(x):
        return x * (tirx.const(1.0) + tirx.erf(x * tirx.const(0.707)))

    for compute in (lambda a, b: gelu(a) * b, lambda a, b: b / tirx.exp(a)):
        one = elementwise("float32", compute)
        arrays = make_inputs(one, "special", hazards(one))
        assert not any(np.isinf(array).any() for array in arrays)
        assert all(np.isnan(array).any() for array in arrays)
    assert "special" not in hazards(elementwise("float32", lambda a, b: tirx.max(gelu(a) * b, b))).sets
    x = te.placeholder((64, 64), "float32", name="x")
    alone = workload(x, te.compute((64, 64), lambda i, j: gelu(x[i, j]), name="gelu"))
    for one in (
        alone,
        elementwise("float32", lambda a, b: a * b),
        elementwise("float32", lambda a, b: tirx.erf(a) + b),
    ):
        assert np.isinf(make_inputs(one, "special", hazards(one))[0]).any()


def test_special_inputs_hold_nan_where_it_is_defined_what_becomes_of_it():
    bound, maximum = (elementwise("float32", what) for what in (lambda a, b: tirx.max(a - b, 0.0), tirx.max))
    for one, has_nan in ((bound, True), (maximum, False)):
        array = make_inputs(one, "special", hazards(one))[0]
        assert np.isnan(array).any() == has_nan
        assert np.isneginf(array).any()
        assert np.isposinf(array).any() == has_nan
        assert np.isfinite(array).mean() > 0.9
    whole = elementwise("float32", lambda a, b: (a + b).astype("int32"))
    assert np.isfinite(make_inputs(whole, "special", hazards(whole))[0]).all()
    a, b = (te.placeholder((64, 64), "float32", name=name) for name in "ab")
    product = workload(a, b, topi.nn.matmul(a, b), constants=(1,))
    given, constant = make_inputs(product, "special", hazards(product))
    assert np.isnan(given).sum() == 2
    assert not np.isinf(given).any()
    assert np.isfinite(constant).all()


def test_large_arguments_of_many_workloads_begin_with_one_block():
    """Its first elements stand for all of them, on a GPU; nobody may change what the next workload gets."""

    def doubled(size):
        a = te.placeholder((size,), "float32", name="a")
        return workload(a, te.compute((size,), lambda i: a[i] * 2))

    one, other = doubled(4096), doubled(8192)
    sets = [make_sets(workload, hazards(workload), 1000) for workload in (one, other)]
    assert all(a[0] is b[0] for a, b in zip(*sets, strict=True))
    assert sets[0][0][0].shape == (1000,)
    with pytest.raises(ValueError, match="read-only"):
        sets[0][0][0][0] = 1


def test_a_large_argument_goes_on_with_its_block():
    block = np.arange(7)
    assert repeated(block, (7,)) is block
    whole = repeated(block, (3, 5))
    assert whole.shape == (3, 5)
    assert whole.reshape(-1).tolist() == [i % 7 for i in range(15)]
    whole[0, 0] = 9
    assert block[0] == 0


def test_a_total_of_everything_is_judged_on_values_that_do_not_cancel():
    """Of 291000 numbers up to 1e18 a mean of 5e7 was left, and of it every order of the sum made another."""
    x = te.placeholder((600, 500), "float32", name="x")
    i, j = te.reduce_axis((0, 600)), te.reduce_axis((0, 500))
    total = workload(x, te.compute((1,), lambda _: te.sum(x[i, j], axis=[i, j])))
    rows = workload(x, te.compute((600,), lambda r: te.sum(x[r, j], axis=j)))
    (moderate,) = make_inputs(total, "adversarial", hazards(total))
    (wild,) = make_inputs(rows, "adversarial", hazards(rows))
    assert np.abs(moderate).max() <= 8 < np.abs(wild).max()
    forth, back = (np.cumsum(order.ravel(), dtype=np.float32)[-1:] for order in (moderate, moderate[::-1]))
    assert disagreement(forth, back, True) == ""


def test_floats_that_a_function_bounds_are_moderate_too():
    """Of seven million sums of 1e36 one goes the other way, and its sigmoid from 0 to 1."""
    x, w = te.placeholder((64, 64), "float32", name="x"), te.placeholder((64, 64), "float32", name="w")
    k = te.reduce_axis((0, 64), "k")
    product = te.compute((64, 64), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k))
    arrays = make_inputs(bounded := workload(x, w, topi.sigmoid(product)), "adversarial", hazards(bounded))
    assert all(np.abs(array).max() <= 8 for array in arrays)
    with np.errstate(over="ignore"):
        forth, back = (1 / (1 + np.exp(-(arrays[0][:, k] @ arrays[1][k]))) for k in (np.s_[:], np.s_[::-1]))
    assert disagreement(forth, back, True) == ""


@pytest.mark.parametrize("is_shortcut_a_product", [True, False])
def test_two_sums_of_halves_that_are_added_up_stay_in_halves(is_shortcut_a_product):
    a, b, c, d = (te.placeholder((1024, 1024), "float16", name) for name in "abcd")

    def product(x, y):
        k = te.reduce_axis((0, 1024), "k")
        return te.compute((1024, 1024), lambda i, j: te.sum((x[i, k] * y[k, j]).astype("float32"), k))

    one, other = topi.cast(product(a, b), "float16"), topi.cast(product(c, d), "float16")
    if is_shortcut_a_product:
        func = workload(a, b, c, d, topi.nn.relu(topi.add(one, other)))
    else:
        func = workload(a, b, c, topi.nn.relu(topi.add(one, c)))
    dangers = hazards(func)
    assert dangers.is_moderate is is_shortcut_a_product
    largest = max(float(np.abs(x).max()) for x in make_inputs(func, "adversarial", dangers))
    assert largest == (8.0 if is_shortcut_a_product else 200.0)


@pytest.mark.parametrize("given", ["a scale", "a root"])
def test_what_multiplies_a_sum_of_products_lets_it_not_overflow(given):
    """Of 1e36 times 1e18 only those sums were left that cancelled, and every order of them made another."""
    x, w = te.placeholder((512, 256), "float32", "x"), te.placeholder((256, 512), "float32", "w")
    rows = te.placeholder((512, 1), "float32", "rows")
    k = te.reduce_axis((0, 256), "k")
    product = te.compute((512, 512), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k))
    inverse = te.compute((512, 1), lambda i, j: tirx.rsqrt(rows[i, j] * rows[i, j] + tirx.const(1e-12, "float32")))
    scales = rows if given == "a scale" else inverse
    scaled = workload(x, w, rows, te.compute((512, 512), lambda i, j: product[i, j] * scales[i, 0]))
    dangers = hazards(scaled)
    assert dangers.factors == 3
    left, right, by = make_inputs(scaled, "adversarial", dangers)
    by = by if given == "a scale" else 1 / np.sqrt(by * by + np.float32(1e-12))
    with np.errstate(over="raise", invalid="raise"):
        forth, back = ((left[:, order] @ right[order]) * by for order in (np.s_[:], np.s_[::-1]))
    assert np.abs(forth).max() > 1e30
    assert disagreement(forth, back, True) == ""


@pytest.mark.parametrize(
    ("compute", "factors"),
    [
        (lambda a, b: a + b * 3.0, 1),
        (lambda a, b: a * b * tirx.erf(a), 2),
        (lambda a, b: tirx.max(a * b * a, b), 3),
        (lambda a, b: a / (b * b), 2),
        (lambda a, b: tirx.Select(a > b, a * a, b), 2),
    ],
)
def test_factors_of_one_number_are_counted(compute, factors):
    assert degree(elementwise("float32", compute)) == factors


def test_few_elements_are_denormal():
    """Some processors take a hundred times as long for one; a product has as many as its operands have, many times."""
    layer = workloads.dense(96, 768, 512)
    dangers = hazards(layer)
    array, weights, _ = make_inputs(layer, "adversarial", dangers)
    for one in (array, weights):
        denormal = (one != 0) & (np.abs(one) < np.finfo(np.float32).tiny)
        assert 8 <= denormal.sum() <= 256
        assert (np.abs(one) == np.abs(one).max()).sum() > 256
