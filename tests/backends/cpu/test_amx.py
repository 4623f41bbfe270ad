"""Products of bfloat16 on AMX's tile registers: right on a processor that has them, and built for one anywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPU
from subtune.backends.cpu.families.amx.candidates import _with_a_shorter_one
from subtune.backends.cpu.families.amx.packing import TilePacking
from subtune.backends.cpu.families.amx.tiles import Run
from subtune.backends.cpu.math.amx_tiles import TileBlock, fits
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.axes import Axis, Role
from tests.backends import workloads
from tests.backends.cpu.chains import build_one
from tests.backends.cpu.test_bf16 import (
    BF16,
    CONTRACTIONS,
    NHWC,
    arguments,
    assert_right,
    build,
    conv,
    conv_of,
    dense,
    dense_of,
    module,
    relu,
    residual_conv_of,
    run,
    scheduled,
)
from tests.backends.cpu.test_half_chain import attention, computed, inputs_of, reference

IS_X86 = CPU("auto").triple.startswith("x86_64")
pytestmark = pytest.mark.skipif(not IS_X86, reason="LLVM here builds for another architecture")
SPR = CPU("sapphirerapids", threads=2) if IS_X86 else CPU("auto")
needs_tiles = pytest.mark.skipif(not CPU("auto").has_tiles, reason="this processor has no AMX to run the kernel on")


def grouped(size: int, cin: int, cout: int, groups: int) -> Workload:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        y = emit(op.nn.conv2d(x, w, padding=1, groups=groups, **NHWC))
        return op.astype(emit(op.nn.relu(emit(op.add(y, b)))), "bfloat16")

    return build(body, [(2, size, size, cin)], [(cout, 3, 3, cin // groups), (1, 1, 1, cout, "f")])


def grouped_of(groups: int) -> Callable[..., np.ndarray]:
    def computed(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        parts = zip(np.split(x, groups, -1), np.split(w, groups, 0), strict=True)
        return relu(np.concatenate([conv_of(c, v) for c, v in parts], -1) + b)

    return computed


CASES = {
    **{name: case for name, case in CONTRACTIONS.items() if name != "gemv"},
    "grouped": (grouped(9, 96, 60, 3), grouped_of(3)),
    "conv, channels a vector and a part": (conv(10, 41, 56, 3), residual_conv_of(1)),
    "dense, several panels": (dense(70, 100, 77), dense_of),
}


@needs_tiles
@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_candidates_are_right(case: str) -> None:
    workload, expected = CASES[case]
    proposed = [c for c in backends.candidates(workload, SPR, topk=400) if c.family == "amx"]
    assert proposed
    for candidate in {proposed[0], proposed[-1], *proposed[1 : -1 : max(1, len(proposed) // 4)]}:
        assert_right(run(workload, scheduled(workload, candidate, SPR), SPR), workload, expected)


@pytest.mark.parametrize("order", ["m", "n"])
def test_a_kernel_multiplies_tiles_between_begin_and_end(order: str, tmp_path: Path) -> None:
    workload = dense(64, 64, 100)
    kernel = scheduled(workload, Candidate.make("amx", mr=2, nr=2, rows=16, mt=1, order=order), SPR)
    module(kernel, SPR).mod.write_to_file(str(tmp_path / "kernel.s"), "s")
    code = (tmp_path / "kernel.s").read_text()
    assert code.count("tdpbf16ps") % 4 == 0 < code.count("tdpbf16ps")
    assert code.count("ldtilecfg") == code.count("tilerelease") == 1
    assert "vdpbf16ps" not in code
    assert "syscall" in code


def test_no_rows_no_tiles_no_template() -> None:
    knobs: dict[str, Any] = {"mr": 2, "nr": 2, "rows": 16, "mt": 1, "order": "m"}
    wide, few = dense(64, 64, 64), dense(1, 64, 64)
    refused = {
        "no AMX": (wide, CPU("znver4"), knobs),
        "too few rows": (few, SPR, knobs),
        "do not fit": (wide, SPR, {**knobs, "mr": 3}),
        "17 rows": (wide, SPR, {**knobs, "rows": 17}),
    }
    for why, (workload, device, given) in refused.items():
        found = backends.schedule(workload, Candidate.make("amx", **given), device)
        assert isinstance(found, NotApplicable), why
        assert why in found.reason
    assert not any(c.family == "amx" for c in backends.candidates(few, SPR))
    elsewhere = dataclasses.replace(SPR, triple="x86_64-apple-macosx13.0")
    assert not elsewhere.has_tiles


def test_what_has_one_name_is_one_function() -> None:
    """Kernels become one library: in another block other registers are for A and for B."""
    defined: dict[str, str] = {}
    sizes = ((4, 1, 13), (2, 2, 13), (2, 2, 16), (2, 2, 16, 3), (2, 2, 16, 3, 8))
    for block in (TileBlock(*given) for given in sizes):
        for text in block.instructions.replace("\n@", "\ndefine @").split("\ndefine ")[1:]:
            name = text.split("@")[1].split("(")[0].split(" ")[0]
            assert defined.setdefault(name, text).strip() == text.strip(), name
    assert {"subtune_amx_2x2_13_1_0", "subtune_amx_begin_2x2_13", "subtune_amx_shape_4x1_13"} <= set(defined)
    assert fits(2, 2)
    assert not fits(3, 2)
    assert fits(4, 1)
    assert not fits(4, 1, parts=3)


@needs_tiles
def test_kernels_of_different_blocks_run_in_one_process() -> None:
    workload, expected = CASES["dense, several panels"]
    for mr, nr, rows in ((2, 2, 16), (4, 1, 13), (1, 3, 5), (2, 2, 16)):
        candidate = Candidate.make("amx", mr=mr, nr=nr, rows=rows, mt=1, order="m")
        assert_right(run(workload, scheduled(workload, candidate, SPR), SPR), workload, expected)


@needs_tiles
@pytest.mark.parametrize(("mr", "rows", "mt"), [(2, 16, 2), (1, 16, 4), (1, 7, 3)])
def test_pixels_of_images_fill_no_whole_groups_of_blocks(mr: int, rows: int, mt: int) -> None:
    """Of 2 x 7 x 7 pixels the last group of blocks has fewer; those behind the last are not multiplied."""
    workload = conv(7, 32, 32, 1, batch=2)
    candidate = Candidate.make("amx", mr=mr, nr=2, rows=rows, mt=mt, order="m")
    kernel = scheduled(workload, candidate, SPR)
    assert_right(run(workload, kernel, SPR), workload, residual_conv_of(1))
    few = Candidate.make("amx", mr=mr, nr=2, rows=rows, mt=1, order="m")
    guards = [str(scheduled(workload, one, SPR).func).count("if ") for one in (candidate, few)]
    assert guards[0] > guards[1]


def test_uneven_groups_of_blocks_are_foretold() -> None:
    """Seven blocks in groups of four: one thread has four of them. Of seven in groups of seven it has all."""
    assert [_with_a_shorter_one(7, each, 2) for each in (1, 4, 7)] == pytest.approx([8 / 7, 8 / 7, 2])
    assert _with_a_shorter_one(13, 4, 2) == pytest.approx(16 / 13)


@needs_tiles
def test_padding_does_not_make_nan_of_infinity() -> None:
    """40 elements of k are two steps: what is beside them in memory is no number of the sum's."""
    workload = dense(20, 16, 40)
    kernel = scheduled(workload, Candidate.make("amx", mr=2, nr=1, rows=10, mt=1, order="m"), SPR)
    x, w, b, y = arguments(workload)
    x[3] = np.inf
    w = np.abs(w)
    (_, packing), *_ = kernel.packings
    tensors = [tvm.runtime.tensor(array) for array in (x, packing(w), b, y)]
    module(kernel, SPR)["main"](*tensors)
    result = tensors[-1].numpy().astype(np.float32)
    assert np.isinf(result[3]).all()
    assert np.isfinite(np.delete(result, 3, axis=0)).all()


def test_constants_are_packed_in_tiles() -> None:
    """[n, taps, k] -> [n / 16][steps][16 pairs][16 columns][2]; 5 elements of a position take 8."""
    array = np.arange(20 * 3 * 5).reshape(20, 3, 5).astype(BF16)
    packing = TilePacking((20, 3, 5), (0, 1, 2), 0, 2, 8)
    packed = packing(array)
    assert packed.shape == packing.shape == (2, 1, 16, 16)
    columns = packed.view(BF16).reshape(2, 16, 16, 2).transpose(0, 2, 1, 3).reshape(32, 32).astype(np.float32)
    expected = np.zeros((32, 4, 8), np.float32)
    expected[:20, :3, :5] = array.astype(np.float32)
    np.testing.assert_array_equal(columns, expected.reshape(32, 32))


@pytest.mark.parametrize(("family", "make"), [("amx", dense), ("amx_parts", workloads.dense)])
def test_blocks_of_any_width_take_the_same_weights(family: str, make: Callable[[int, int, int], Workload]) -> None:
    """Twelve columns of tiles are whole blocks of one, two and three; thirteen are not."""

    def packings(columns: int) -> set[Any]:
        given = (Candidate.make(family, mr=1, nr=nr, rows=12, mt=1, order="n") for nr in (1, 2, 3))
        return {scheduled(make(24, 16 * columns, 80), one, SPR).packings for one in given}

    assert [len(packings(columns)) for columns in (12, 13)] == [1, 3]


@pytest.mark.parametrize(
    ("extents", "padded", "lanes"), [((64,), 64, 32), ((77,), 77, 32), ((3, 3, 64), 64, 32), ((3, 3, 8), 8, 8)]
)
def test_channels_are_copied_in_vectors(extents: tuple[int, ...], padded: int, lanes: int) -> None:
    run = Run.of([Axis(i, extent, Role.K) for i, extent in enumerate(extents)], columns=64)
    assert (run.padded, run.lanes) == (padded, lanes)
    assert run.steps * 32 >= run.count * run.padded


@needs_tiles
@pytest.mark.parametrize(("rows", "keys"), [(32, 32), (19, 37), (50, 70)])
@pytest.mark.parametrize("turned", [True, False])
def test_attention_is_right(rows: int, keys: int, turned: bool) -> None:
    workload = attention("bfloat16", rows, keys, turned)
    inputs = inputs_of(workload)
    q, k, v, mask = (x.astype(float) for x in inputs)
    want = reference(q, k.transpose(0, 2, 1) if turned else k, v, mask)
    proposed = [c for c in backends.candidates(workload, SPR, topk=200) if c.family == "amx_chain"]
    assert proposed
    for candidate in {proposed[0], proposed[-1], *proposed[1 : -1 : max(1, len(proposed) // 3)]}:
        got = computed(workload, candidate, inputs, SPR)
        assert np.abs(got - want).max() <= 2.0**-7 * np.abs(want).max(), str(candidate)


@needs_tiles
def test_a_chain_without_a_softmax_is_right() -> None:
    """Columns that pad the first product's to whole tiles are zeros in the second one."""

    def body(emit: Any, a: Any, b: Any, e: Any) -> Any:
        a, b, e = (emit(op.astype(x, "float32")) for x in (a, b, e))
        return op.astype(emit(op.matmul(emit(op.exp(emit(op.matmul(a, b)))), e)), "bfloat16")

    workload = build_one(body, [(2, 19, 16), (2, 16, 37), (2, 37, 24)], dtype="bfloat16")
    inputs = inputs_of(workload)
    candidate = Candidate.make("amx_chain", mr=1, nr=2, rows=10, mb=1, pack="batch")
    a, b, e = (x.astype(float) for x in inputs)
    want = np.exp(a @ b) @ e
    got = computed(workload, candidate, inputs, SPR)
    assert np.abs(got - want).max() <= 2.0**-6 * np.abs(want).max()


def test_attention_without_tiles_or_in_float16_is_left_to_others() -> None:
    knobs: dict[str, Any] = {"mr": 1, "nr": 2, "rows": 16, "mb": 1, "pack": "once"}
    refused = {
        "no AMX": (attention("bfloat16", 32, 32), CPU("znver4"), knobs),
        "needs bfloat16": (attention("float16", 32, 32), SPR, knobs),
        "no packing": (attention("bfloat16", 32, 32), SPR, {**knobs, "pack": "never"}),
        "do not fit": (attention("bfloat16", 32, 32), SPR, {**knobs, "mr": 4}),
    }
    for why, (workload, device, given) in refused.items():
        found = backends.schedule(workload, Candidate.make("amx_chain", **given), device)
        assert isinstance(found, NotApplicable), why
        assert why in found.reason


def test_chains_of_halves_are_judged_on_what_rounds_nothing_between() -> None:
    device = CPU("auto", threads=2)
    workload = attention("bfloat16", 19, 37)
    kernel = backends.schedule(workload, Candidate("reference"), device)
    assert isinstance(kernel, Kernel)
    inputs = inputs_of(workload)
    q, k, v, mask = (x.astype(float) for x in inputs)
    got = computed(workload, Candidate("reference"), inputs, device)
    want = reference(q, k.transpose(0, 2, 1), v, mask)
    assert np.abs(got - want).max() <= 2.0**-8 * np.abs(want).max()
    assert isinstance(backends.schedule(dense(8, 16, 8), Candidate("reference"), device), NotApplicable)
