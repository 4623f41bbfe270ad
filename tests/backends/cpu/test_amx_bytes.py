"""Products of bytes on AMX's tile registers: built for them everywhere, and run with functions in their place.

What those do is in `emulated_tiles.c`. The same stands in for the instructions of bfloat16, whose kernels ran on
processors that have them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPU
from subtune.backends.cpu.families.amx.packing import TilePacking
from subtune.backends.cpu.math.amx_tiles import TileBlock
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from tests.backends.cpu import test_amx
from tests.backends.cpu.test_amx import IS_X86, SPR
from tests.backends.cpu.test_bf16 import NHWC, assert_right, module, run, scheduled
from tests.backends.cpu.test_byte_dots import conv_of_zero_points, extremes, of_zero_points, sums
from tests.backends.cpu.test_int8 import CASES, build, conv, dense, given, requantised, stored

pytestmark = pytest.mark.skipif(not IS_X86, reason="LLVM here builds for another architecture")
HOST = CPU("auto", threads=2)
KNOBS: dict[str, Any] = {"mr": 2, "nr": 2, "rows": 16, "mt": 1, "order": "m"}


@pytest.fixture(scope="session")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The functions, where the kernels of this process find them."""
    compiler = shutil.which("cc")
    if not compiler or "avx512f" not in HOST.features:
        pytest.skip("needs a C compiler, and AVX-512 for what is no product")
    library = tmp_path_factory.mktemp("tiles") / "tiles.so"
    source = Path(__file__).with_name("emulated_tiles.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


@pytest.fixture
def emulated(tiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels call functions in place of the instructions."""
    instructions = TileBlock.instructions
    assert isinstance(instructions, property)
    own = instructions.fget
    assert own is not None
    text = property(lambda block: own(block).replace("@llvm.x86.", "@emulated_").replace(" immarg", ""))
    monkeypatch.setattr(TileBlock, "instructions", text)


def grouped(size: int, cin: int, cout: int, groups: int) -> Workload:
    def body(emit: Any, x: Any, w: Any, b: Any, f: Any) -> Any:
        acc = emit(op.nn.conv2d(x, w, padding=1, groups=groups, **{**NHWC, "out_dtype": "int32"}))
        return requantised(emit, acc, b, f)

    vectors = [((1, 1, 1, cout), dtype) for dtype in ("int32", "float32")]
    return build(body, [((1, size, size, cin), "uint8")], [((cout, 3, 3, cin // groups), "int8"), *vectors])


def grouped_of(groups: int) -> Callable[..., np.ndarray]:
    def computed(x: np.ndarray, w: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        parts = zip(np.split(x, groups, -1), np.split(w, groups, 0), strict=True)
        return stored(np.concatenate([test_amx.conv_of(c, v) for c, v in parts], -1), *rest)

    return computed


PRODUCTS: dict[str, tuple[Workload, Callable[..., np.ndarray]]] = {
    **{name: case for name, case in CASES.items() if name != "dense, one row"},
    "dense, int8 rows": (dense(20, 70, 130, "int8"), lambda x, w, *rest: stored(x @ w, *rest)),
    "dense, several panels": (dense(70, 100, 77), lambda x, w, *rest: stored(x @ w, *rest)),
    "conv, channels a vector and a part": (
        conv(10, 73, 40, 3),
        lambda x, w, *rest: stored(test_amx.conv_of(x, w), *rest),
    ),
    "conv of zero points": (conv_of_zero_points(9, 20, 24), of_zero_points),
    "grouped": (grouped(9, 96, 60, 3), grouped_of(3)),
}


def some(workload: Workload) -> list[Candidate]:
    proposed = [c for c in backends.candidates(workload, SPR, topk=400) if c.family == "amx_int8"]
    assert proposed
    return [proposed[0], proposed[-1], *proposed[1 : -1 : max(1, len(proposed) // 4)]]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("case", PRODUCTS)
@pytest.mark.grid
def test_candidates_are_exact(case: str) -> None:
    workload, reference = PRODUCTS[case]
    exact = [array.astype(np.int64) if array.dtype.kind in "iu" else array for array in given(workload)[:-1]]
    expected = reference(*exact)
    for candidate in some(workload):
        got = run(workload, scheduled(workload, candidate, SPR), HOST, given(workload))
        np.testing.assert_array_equal(got, expected, str(candidate))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("rows", ["uint8", "int8"])
def test_the_largest_sums_are_exact(rows: str) -> None:
    workload = sums(20, 40, 200, rows)
    kernel = scheduled(workload, Candidate.make("amx_int8", **KNOBS), SPR)
    for x, w in extremes(rows, (20, 200), 40):
        got = run(workload, kernel, HOST, [x, w, np.zeros((20, 40), "int32")])
        np.testing.assert_array_equal(got, x.astype(np.int64) @ w.astype(np.int64))


@pytest.mark.usefixtures("emulated")
@pytest.mark.skipif("avx512bf16" not in HOST.features, reason="this processor has no AVX512-BF16 for the rounding")
@pytest.mark.parametrize("case", ["dense, several panels", "grouped"])
def test_the_functions_do_what_the_instructions_of_bfloat16_do(case: str) -> None:
    workload, expected = test_amx.CASES[case]
    candidate = next(c for c in backends.candidates(workload, SPR, topk=400) if c.family == "amx")
    assert_right(run(workload, scheduled(workload, candidate, SPR), HOST), workload, expected)


@pytest.mark.parametrize(("rows", "product"), [("uint8", "tdpbusd"), ("int8", "tdpbssd")])
def test_a_kernel_multiplies_tiles_of_bytes(rows: str, product: str) -> None:
    workload = dense(64, 64, 256, rows)
    code = module(scheduled(workload, Candidate.make("amx_int8", **KNOBS), SPR), SPR).mod.inspect_source("asm")
    assert code.count(product) % 4 == 0 < code.count(product)
    assert code.count("ldtilecfg") == code.count("tilerelease") == 1
    assert "vpdpbusd" not in code
    assert "tdpbf16ps" not in code


def test_tiles_and_words_are_candidates_beside_one_another() -> None:
    families = {c.family for c in backends.candidates(conv(14, 64, 64, 3), SPR, topk=2000)}
    assert families >= {"amx_int8", "contraction_int8"}
    assert "amx_int8" not in {c.family for c in backends.candidates(dense(1, 64, 64), SPR, topk=2000)}


def test_it_is_refused_where_it_should_be() -> None:
    wide = dense(64, 64, 64)
    refused = {
        "no AMX for bytes": (wide, CPU("icelake-server")),
        "too few rows": (dense(1, 64, 64), SPR),
        "needs operands of bytes, not bfloat16": (test_amx.dense(64, 64, 64), SPR),
    }
    for why, (workload, device) in refused.items():
        found = backends.schedule(workload, Candidate.make("amx_int8", **KNOBS), device)
        assert isinstance(found, NotApplicable), why
        assert why in found.reason
    assert SPR.has_byte_tiles
    assert not dataclasses.replace(SPR, triple="x86_64-apple-macosx13.0").has_byte_tiles


def test_constants_are_packed_in_tiles() -> None:
    """[n, taps, k] -> [n / 16][steps][16 words][16 columns][4]; 5 elements of a position take 8."""
    array = np.arange(20 * 9 * 5).reshape(20, 9, 5).astype(np.int8)
    packing = TilePacking((20, 9, 5), (0, 1, 2), 0, 2, 8, 1, 4)
    packed = packing(array)
    assert packed.shape == packing.shape == (2, 2, 16, 16)
    columns = packed.view(np.int8).reshape(2, 2, 16, 16, 4).transpose(0, 3, 1, 2, 4).reshape(32, 128)
    expected = np.zeros((32, 16, 8), np.int8)
    expected[:20, :9, :5] = array
    np.testing.assert_array_equal(columns, expected.reshape(32, 128))


def test_tiles_of_bytes_multiply_eight_times_as_fast_as_words() -> None:
    words = dataclasses.replace(SPR, features=tuple(f for f in SPR.features if f != "amx-int8"))
    assert words.peak_flops("uint8") == 4 * SPR.peak_flops()
    assert SPR.peak_flops("uint8") == SPR.peak_flops("int8") == 8 * words.peak_flops("uint8")
