"""Products of float32 as sums of three bfloat16 on AMX's tile registers: as exact as float32 itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.backends.cpu.families.amx.packing import TilePacking
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.numerics import Numerics
from subtune.core.workload import Workload
from tests.backends.cpu.test_amx import IS_X86, SPR, needs_tiles
from tests.backends.cpu.test_bf16 import (
    NHWC,
    arguments,
    build,
    conv_of,
    dense_of,
    module,
    relu,
    residual_conv_of,
    run,
    scheduled,
)

pytestmark = pytest.mark.skipif(not IS_X86, reason="LLVM here builds for another architecture")
KNOBS: dict[str, Any] = {"mr": 2, "nr": 2, "rows": 16, "mt": 1, "order": "m"}


def dense(m: int, n: int, k: int) -> Workload:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return op.nn.relu(emit(op.add(emit(op.matmul(x, w)), b)))

    return build(body, [(m, k, "f")], [(k, n, "f"), (n, "f")])


def conv(size: int, cin: int, cout: int, kernel: int, stride: int = 1) -> Workload:
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1

    def body(emit: Any, x: Any, r: Any, w: Any, b: Any) -> Any:
        y = emit(op.nn.conv2d(x, w, strides=stride, padding=pad, **NHWC))
        return op.nn.relu(emit(op.add(emit(op.add(y, b)), r)))

    shapes = [(1, size, size, cin, "f"), (1, out, out, cout, "f")]
    return build(body, shapes, [(cout, kernel, kernel, cin, "f"), (1, 1, 1, cout, "f")])


def grouped(size: int, cin: int, cout: int, groups: int) -> Workload:
    def body(emit: Any, x: Any, w: Any) -> Any:
        return op.nn.relu(emit(op.nn.conv2d(x, w, padding=1, groups=groups, **NHWC)))

    return build(body, [(1, size, size, cin, "f")], [(cout, 3, 3, cin // groups, "f")])


def grouped_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    parts = zip(np.split(x, 2, -1), np.split(w, 2, 0), strict=True)
    return relu(np.concatenate([conv_of(c, v) for c, v in parts], -1))


def batch_matmul(batch: int, m: int, n: int, k: int, transposed: bool) -> Workload:
    def body(emit: Any, a: Any, b: Any) -> Any:
        return op.matmul(a, emit(op.permute_dims(b, [0, 2, 1])) if transposed else b)

    return build(body, [(batch, m, k, "f"), (batch, n, k, "f") if transposed else (batch, k, n, "f")])


CASES = {
    "dense": (dense(64, 64, 96), dense_of),
    "dense, prime rows, odd columns and k": (dense(37, 50, 31), dense_of),
    "dense, several panels": (dense(196, 100, 77), dense_of),
    "conv3x3": (conv(10, 32, 48, 3), residual_conv_of(1)),
    "conv, channels a vector and a part": (conv(9, 41, 20, 3), residual_conv_of(1)),
    "conv1x1 stride 2": (conv(14, 16, 32, 1, stride=2), residual_conv_of(2)),
    "grouped": (grouped(9, 64, 60, 2), grouped_of),
    "batch matmul": (batch_matmul(3, 20, 40, 50, False), np.matmul),
    # B comes first: the group's prologue reads it first
    "attention scores": (batch_matmul(2, 33, 19, 40, True), lambda b, a: a @ b.transpose(0, 2, 1)),
}


@needs_tiles
@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_candidates_are_as_exact_as_float32(case: str) -> None:
    """Against float64: no larger an error than NumPy's product of float32 has, or a few roundings of the result."""
    workload, expected = CASES[case]
    proposed = [c for c in backends.candidates(workload, SPR, topk=400) if c.family == "amx_parts"]
    assert proposed
    given = arguments(workload)[:-1]
    exact = expected(*(array.astype(np.float64) for array in given))
    plain = np.abs(expected(*given) - exact).max()
    for candidate in {proposed[0], proposed[-1], *proposed[1 : -1 : max(1, len(proposed) // 4)]}:
        error = np.abs(run(workload, scheduled(workload, candidate, SPR), SPR) - exact).max()
        assert error <= 1.5 * plain + 2.0**-23 * np.abs(exact).max(), candidate


def test_a_step_has_six_products_of_parts_and_asks_for_what_comes_next(tmp_path: Path) -> None:
    workload = dense(64, 64, 96)
    kernel = scheduled(workload, Candidate.make("amx_parts", **{**KNOBS, "mt": 2, "order": "nm"}), SPR)
    module(kernel, SPR).mod.write_to_file(str(tmp_path / "kernel.s"), "s")
    code = (tmp_path / "kernel.s").read_text()
    products = code.count("tdpbf16ps")
    assert products % 24 == 0 < products
    assert code.count("tileloadd") == products // 24 * 14  # of six times two and two
    assert "vcvtneps2bf16" in code
    assert code.count("prefetcht1") == products // 24 * 48  # half of a panel's lines in each of two passes


def test_it_is_refused_where_it_should_be() -> None:
    wide, few = dense(64, 64, 64), dense(1, 64, 64)
    exact = dataclasses.replace(as_device(SPR), numerics=Numerics(exact=True))
    refused = {
        "rounds otherwise": (wide, exact, KNOBS),
        "no AMX": (wide, CPU("znver4"), KNOBS),
        "too few rows": (few, SPR, KNOBS),
        "do not fit": (wide, SPR, {**KNOBS, "mr": 4, "nr": 1}),
    }
    for why, (workload, device, knobs) in refused.items():
        found = backends.schedule(workload, Candidate.make("amx_parts", **knobs), device)
        assert isinstance(found, NotApplicable), why
        assert why in found.reason
    assert not any(c.family == "amx_parts" for c in backends.candidates(wide, exact))


def test_constants_are_packed_in_parts_that_sum_up_to_them() -> None:
    array = np.random.default_rng(0).standard_normal((40, 20)).astype(np.float32)
    packing = TilePacking((40, 20), (1, 0), 0, 2, 40, 3)
    packed = packing(array)
    assert packed.shape == packing.shape == (2, 3, 2, 16, 16)
    parts = packed.view(ml_dtypes.bfloat16).reshape(2, 3, 2, 16, 16, 2).astype(np.float64)
    whole = parts.sum(1).transpose(1, 2, 4, 0, 3).reshape(64, 32)
    np.testing.assert_allclose(whole[:40, :20], array, rtol=2.0**-24)
    assert not whole[40:].any()
    assert not whole[:, 20:].any()
