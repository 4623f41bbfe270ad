"""A few rows, as integers of three digits, times weights of 4 bits: as right as sums of floats, and faster."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from subtune import backends
from subtune.backends import as_device
from subtune.backends.base import Device, Problem
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.families.packed_weights.candidates import digits_obstacle, dot_of, rows_of_digits
from subtune.core.kernel import NotApplicable
from subtune.core.numerics import PLAIN, Numerics
from subtune.core.workload import Workload
from subtune.measure.hazards import hazards
from subtune.measure.inputs import make_inputs
from subtune.measure.verdict import disagreement
from tests.backends.cpu.test_bf16 import run, scheduled
from tests.backends.cpu.test_packed_weights import (
    CASES,
    HOST,
    close,
    form_of,
    given,
    is_of_digits,
    machine_code,
    of_vectors,
    product,
)
from tests.packed_weights import Case, F

ZEN4 = CPU("znver4", threads=2)
NIBBLES = {name: case for name, case in CASES.items() if case.bits == 4} | {
    "groups of rows": Case(12, 48, 128, zero="blocks"),
    "one word in a block": Case(3, 32, 40, size=40),
}
needs_dots = pytest.mark.skipif(dot_of(HOST) is None, reason="this processor multiplies no bytes in one instruction")


def refusal(workload: Workload, vectors: int = 1, device: Device | CPUModel = ZEN4, ahead: bool = False) -> str:
    found = backends.schedule(workload, of_vectors(vectors, digits=True, ahead=ahead), device)
    return found.reason if isinstance(found, NotApplicable) else ""


@needs_dots
@pytest.mark.parametrize("vectors", [1, 2, 4])
@pytest.mark.parametrize("name", NIBBLES)
@pytest.mark.grid
def test_products(name: str, vectors: int) -> None:
    workload = NIBBLES[name].workload()
    form, arrays = form_of(workload), given(workload)
    if digits_obstacle(form, vectors, Problem(workload, HOST, PLAIN)):
        pytest.skip("there are no registers for so many sums")
    ahead = rows_of_digits(form, vectors, HOST) == form.rows
    kernel = scheduled(workload, of_vectors(vectors, digits=True, serial=vectors == 2, ahead=ahead), HOST)
    close(run(workload, kernel, HOST, arrays), product(workload, arrays))


@needs_dots
@pytest.mark.parametrize("name", ["a vector", "zero points", "short blocks", "groups of rows", "odd everything"])
def test_the_tuner_finds_them_right(name: str) -> None:
    """On all of its inputs: magnitudes of many decades, NaN and infinities."""
    workload = NIBBLES[name].workload()
    dangers = hazards(workload)
    kernels = [scheduled(workload, of_vectors(1, digits=digits), HOST) for digits in (True, False)]
    assert "special" in dangers.sets
    for kind in dangers.sets:
        arrays = [*make_inputs(workload, kind, dangers), given(workload)[-1]]
        out, ref = (run(workload, kernel, HOST, arrays) for kernel in kernels)
        assert not disagreement(out, ref, kind == "adversarial", nan_spreads=kind == "special" and dangers.nan_spreads)


@needs_dots
def test_rounded_to_23_bits_of_the_largest_in_a_block() -> None:
    """One x of a block is 8355584 and has a weight of zero; the others, below 100, are as exact as integers."""
    workload = Case(3, 64, 128).workload()
    form, arrays = form_of(workload), given(workload)
    packed = arrays[form.packed]
    packed[:, :: form.group // 2] = packed[:, :: form.group // 2] & 0xF0 | form.point
    arrays[form.x][:] = np.random.default_rng(1).integers(-100, 100, arrays[form.x].shape)
    arrays[form.x][:, :: form.group] = -8355584
    close(run(workload, scheduled(workload, of_vectors(1, digits=True), HOST), HOST, arrays), product(workload, arrays))


@needs_dots
def test_values_at_the_ends_of_float32() -> None:
    """Zeros, very small, denormal and very large numbers, NaN and infinities, each in a row of its own."""
    workload = Case(8, 32, 64, zero="blocks").workload()
    form, arrays = form_of(workload), given(workload)
    x, arrays[form.zero] = arrays[form.x], arrays[form.zero] % 16
    x *= np.array([0, 1e-29, 1e-36, 1e-41, 1e34, 1, 1, 1], F)[:, None]
    x[5, 40], x[6, 3], x[7, 50] = np.nan, np.inf, -np.inf
    got = run(workload, scheduled(workload, of_vectors(1, digits=True), HOST), HOST, arrays)
    with np.errstate(invalid="ignore"):
        wanted = product(workload, arrays)
    assert not got[0].any()
    for row in (1, 4):
        close(got[row], wanted[row])
    assert np.abs(got - wanted)[2:4].max() < 64 * 15 * np.abs(arrays[form.scale]).max() * 2.0**-126
    assert np.isnan(got[5:]).all()


@needs_dots
def test_a_positive_mean_is_no_worse() -> None:
    """Sums of nibbles that are not yet centred are ten times as large as the result: they are integers."""
    workload = Case(2, 64, 128, size=128).workload()
    arrays = given(workload)
    form = form_of(workload)
    arrays[form.x] = np.abs(arrays[form.x]) + 100
    wanted = product(workload, arrays)
    got = [run(workload, scheduled(workload, of_vectors(1, digits=d), HOST), HOST, arrays) for d in (True, False)]
    of_digits, of_floats = (np.sqrt(np.mean((one - wanted) ** 2)) for one in got)
    assert of_digits <= of_floats


@needs_dots
def test_several_axes_of_rows() -> None:
    """Twelve rows as [3, 4, 64], which no pass leaves so, in groups of six."""
    x, packed = te.placeholder((3, 4, 64), "float32", "x"), te.placeholder((32, 32), "uint8", "w")
    scale, k = te.placeholder((32, 2), "float32", "s"), te.reduce_axis((0, 64), "k")

    def weight(i: Any, j: Any) -> Any:
        nibble = (packed[i, j // 2] >> (j % 2 * 4).astype("uint8")) & tirx.const(15, "uint8")
        return (nibble.astype("float32") - tirx.const(8.0, "float32")) * scale[i, j // 32]

    weights = te.compute((32, 64), weight, "weight")
    y = te.compute((3, 4, 32), lambda i, j, n: te.sum(x[i, j, k] * weights[n, k], axis=k), "y")
    func = te.create_prim_func([x, packed, scale, y]).with_attr("layout_free_buffers", [1, 2])
    workload = Workload.of(func, 1)
    arrays, form = given(workload), form_of(workload)
    assert (form.rows, form.point, rows_of_digits(form, 1, HOST)) == (12, 8, 6)
    got = run(workload, scheduled(workload, of_vectors(1, digits=True), HOST), HOST, arrays)
    close(got, product(workload, arrays))


@pytest.mark.skipif(not HOST.triple.startswith("x86_64"), reason="LLVM here builds for another architecture")
@pytest.mark.parametrize(("rows", "vectors"), [(1, 2), (4, 1), (2, 2)])
def test_nine_instructions_for_a_vector_of_words(rows: int, vectors: int) -> None:
    """Six products for every row, two masks and a shift for all; each vector of a block becomes floats once."""
    workload = Case(rows, 128, 256).workload()
    text = machine_code(scheduled(workload, of_vectors(vectors, digits=True), ZEN4), ZEN4)
    loop = next(part for part in re.split(r"\n\.L\w+:", text) if "vpdpbusd" in part)
    words = loop.count("vpdpbusd") // (6 * rows)
    assert words * 6 * rows == loop.count("vpdpbusd")
    assert loop.count("vpsrld") == words
    assert len(re.findall(r"vpand[dq]\s", loop)) == 2 * words
    assert loop.count("vcvtdq2ps") == 3 * rows * vectors
    assert "vgather" not in loop
    assert not re.search(r"zmm\d+, -?\d*\(%rsp\)", loop)


@pytest.mark.skipif(not HOST.triple.startswith("x86_64"), reason="LLVM here builds for another architecture")
def test_avx_vnni_is_built() -> None:
    """Vectors of eight words, and half as many registers."""
    device, workload = CPU("alderlake", threads=2), Case(3, 64, 128).workload()
    text = machine_code(scheduled(workload, of_vectors(1, digits=True), device), device)
    assert re.search(r"vpdpbusd\s.*%ymm", text)
    assert "zmm" not in text
    assert "registers" in refusal(workload, 2, device)


def test_they_are_proposed_where_they_pay() -> None:
    workload = Case(1, 4096, 4096, size=128).workload()
    found = [one for one in backends.candidates(workload, ZEN4, topk=40) if one.family == "packed_weights"]
    best = {is_of_digits(one): one.predicted_s for one in reversed(found)}
    assert best[True] < best[False]


def test_what_is_refused() -> None:
    assert "8 bits" in refusal(CASES["uint8"].workload())
    assert "blocks of 256" in refusal(Case(1, 64, 256, size=256).workload())
    assert "registers" in refusal(Case(11, 64, 128).workload())
    assert "registers" in refusal(Case(16, 64, 128).workload(), 4)
    assert "in groups" in refusal(Case(16, 64, 128).workload(), ahead=True)
    assert "no instruction" in refusal(CASES["a vector"].workload(), device=CPU("haswell", threads=2))
    exact = replace(as_device(ZEN4), numerics=Numerics(exact=True))
    assert "rounds otherwise" in refusal(CASES["a vector"].workload(), device=exact)
    offered = backends.candidates(CASES["a vector"].workload(), exact, topk=40)
    assert not any(is_of_digits(one) for one in offered)
    assert any(one.family == "packed_weights" for one in offered)
