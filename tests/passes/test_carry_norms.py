"""Norms between products taken apart: the numbers stay, and what cannot be taken apart stays."""

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune.core.forms import Forms
from subtune.passes.carry_norms import carry_norms, centred

FORMS = Forms(carries_norms=True)
ROWS, COLUMNS = 1024, 128


def half(array):
    return relax.const(np.asarray(array, "float16"))


def product(x, rng, k, n, bias=True):
    """x @ w + b in float32, of halves."""
    y = op.matmul(x, half(rng.standard_normal((k, n)) * k**-0.5), out_dtype="float32")
    return op.add(y, relax.const(rng.standard_normal(n).astype("float32"))) if bias else y


def normed(x, rng, norm="layer", plain=False, columns=COLUMNS):
    """The norm of halves, as halves."""
    scale = np.ones(columns) if plain else rng.uniform(0.5, 1.5, columns)
    shift = np.zeros(columns) if plain else rng.standard_normal(columns)
    wide, *params = op.astype(x, "float32"), *(relax.const(p.astype("float32")) for p in (scale, shift))
    if norm == "rms":
        return op.astype(op.nn.rms_norm(wide, params[0], axes=[-1]), "float16")
    return op.astype(op.nn.layer_norm(wide, *params, axes=[-1]), "float16")


def network(norm="layer", plain=False, residual=False, bias=True, k=16, rows=ROWS, columns=COLUMNS):
    def body(x):
        rng = np.random.default_rng(0)
        y = op.astype(product(x, rng, k, columns), "float16")
        y = normed(y, rng, norm, plain, columns)
        z = product(y, rng, columns, columns if residual else 24, bias)
        return op.astype(op.add(z, op.astype(y, "float32")) if residual else z, "float16")

    return [((rows, k), "float16")], body


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.grid
def test_a_norm_between_products_is_taken_apart(norm, plain, residual, module, ops, agree):
    before = module(*network(norm, plain, residual))
    after = carry_norms(before, FORMS)
    assert not {"nn.layer_norm", "nn.rms_norm"} & set(ops(after))
    names = [gvar.name_hint for gvar in after.get_global_vars()]
    assert "row_moments" in names
    assert sum(name.startswith("row_scales") for name in names) == 1 + (residual and norm == "layer")
    agree(before, after, 4e-3)
    assert carry_norms(after, FORMS) is after


def test_a_shift_and_a_bias_are_one(module, ops, agree):
    assert ops(carry_norms(module(*network()), FORMS))["add"] == 2

    def behind_another(x):  # a residual of BERT's
        rng = np.random.default_rng(0)
        y = normed(op.astype(product(x, rng, 16, COLUMNS), "float16"), rng)
        z = product(op.astype(product(y, rng, COLUMNS, 32), "float16"), rng, 32, COLUMNS)
        return op.add(z, op.astype(y, "float32"))

    before = module([((ROWS, 16), "float16")], behind_another)
    after = carry_norms(before, FORMS)
    # of each product a bias; the residual, and the shift of its rows
    assert ops(after)["add"] == 5
    agree(before, after, 4e-3)
    without = module(*network(bias=False))
    after = carry_norms(without, FORMS)
    assert ops(after)["add"] == 2
    agree(without, after, 4e-3)


@pytest.mark.parametrize("given", [{"rows": 512}, {"columns": 96}])
def test_few_rows_and_ragged_ones_are_left(given, module):
    mod = module(*network(**given))
    assert carry_norms(mod, FORMS) is mod


def test_only_where_the_device_can_and_no_narrow_rows(module):
    mod = module(*network())
    assert carry_norms(mod, Forms()) is mod
    assert carry_norms(mod, Forms(carries_norms=True, normed_columns=COLUMNS)) is mod
    assert carry_norms(mod, Forms(carries_norms=True, normed_columns=COLUMNS - 1)) is not mod


def test_a_norm_of_no_product_or_with_other_readers_is_left(module):
    def of_input(x):
        return product(normed(x, np.random.default_rng(0)), np.random.default_rng(1), COLUMNS, 24)

    def read_by_softmax(x):
        rng = np.random.default_rng(0)
        y = normed(op.astype(product(x, rng, COLUMNS, COLUMNS), "float16"), rng)
        return product(y, rng, COLUMNS, 24), op.nn.softmax(y)

    for body in (of_input, read_by_softmax):
        mod = module([((ROWS, COLUMNS), "float16")], body)
        assert carry_norms(mod, FORMS) is mod


def test_rows_far_from_zero_are_normalised_as_before(module, run):
    """A row's mean, hundreds of times what it varies by, must not show in the product."""

    def body(x):
        rng = np.random.default_rng(0)
        y = op.add(product(x, rng, 16, COLUMNS, bias=False), relax.const(np.float32(100)))
        return product(normed(op.astype(y, "float16"), rng), rng, COLUMNS, 24)

    before = module([((ROWS, 16), "float16")], body)
    after = carry_norms(before, FORMS)
    assert after is not before
    x = np.random.default_rng(1).standard_normal((ROWS, 16)).astype("float16")
    (want,), (found,) = run(before, [x]), run(after, [x])
    assert np.abs(want - found).max() < 6e-3 * np.abs(want).max()


def test_columns_of_centred_weights_add_up_to_nothing():
    rng = np.random.default_rng(0)
    weight, factor = rng.standard_normal((768, 40)).astype("float16"), rng.uniform(0.5, 1.5, 768)
    found = centred(weight, factor)
    wide = weight.astype("float64") * factor[:, None]
    wide -= wide.mean(axis=0)
    rounded = wide.astype("float16")
    assert found.dtype == weight.dtype
    assert np.abs(found.astype("float64").sum(axis=0)).max() < 1e-3
    assert np.abs(rounded.astype("float64").sum(axis=0)).max() > 5e-3
    assert np.abs(found - wide).std() < 1.05 * np.abs(rounded - wide).std()
