"""Products of bytes on processors without AVX512-VNNI: exact at the extremes, in their own instructions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.backend import BACKEND
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.math.byte_dots import byte_dot, bytes_per_multiply_add, cheapest_rows
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends.cpu.test_bf16 import NHWC, conv_of, module, scheduled
from tests.backends.cpu.test_int8 import CASES, IS_X86, build, conv, dense, given, product_of_two, requantised, stored

FAMILY = "contraction_int8"
ROWS = ("uint8", "int8")
ZERO = 121
INSTRUCTIONS = {
    "nehalem": ("pmaddwd", "pmaddwd"),
    "haswell": ("vpmaddwd", "vpmaddwd"),
    "skylake-avx512": ("vpmaddwd", "vpmaddwd"),
    "alderlake": ("vpdpbusd", "vpdpbusd"),
    "icelake-server": ("vpdpbusd", "vpdpbusd"),
    "cortex-a55": ("sdot", "sdot"),
    "neoverse-n1": ("sdot", "sdot"),
    "apple-m1": ("sdot", "sdot"),
    "neoverse-v1": ("usdot", "sdot"),
    "neoverse-n2": ("usdot", "sdot"),
    "apple-m2": ("usdot", "sdot"),
}
"""The one that multiplies uint8 with int8, and int8 with int8."""
HOST = CPU("auto", threads=2)
AS_WIDE = "alderlake"
"""AVX-VNNI's instruction has another encoding in AVX512-VL, which is taken where the processor here has no other."""
HERE = [
    name
    for name in INSTRUCTIONS
    if not CPU(name).obstacle() or (name == AS_WIDE and {"avx512vnni", "avx512vl"} <= set(HOST.features))
]
needs_x86 = pytest.mark.skipif(not IS_X86, reason="LLVM here builds for another architecture")


def sums(m: int, n: int, k: int, rows: str) -> Workload:
    """Products with constants, stored as they are summed."""

    def body(_emit: Any, x: Any, w: Any) -> Any:
        return op.matmul(x, w, "int32")

    return build(body, [((m, k), rows)], [((k, n), "int8")])


def conv_of_zero_points(size: int, cin: int, cout: int) -> Workload:
    """3x3, with what stands for zero round the image."""

    def body(emit: Any, x: Any, w: Any, b: Any, f: Any) -> Any:
        padded = emit(op.nn.pad(x, [0, 0, 1, 1, 1, 1, 0, 0], "constant", float(ZERO)))
        acc = emit(op.nn.conv2d(padded, w, **{**NHWC, "out_dtype": "int32"}))
        return requantised(emit, acc, b, f)

    vectors = [((1, 1, 1, cout), dtype) for dtype in ("int32", "float32")]
    return build(body, [((1, size, size, cin), "uint8")], [((cout, 3, 3, cin), "int8"), *vectors])


def of_zero_points(x: np.ndarray, w: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=ZERO)
    return stored(conv_of(padded, w)[:, 1:-1, 1:-1], *rest)


def some(workload: Workload, device: CPUModel) -> list[Candidate]:
    """The first one proposed, the last one, and one between."""
    proposed = [c for c in backends.candidates(workload, device, topk=60) if c.family == FAMILY]
    assert proposed
    return [proposed[0], proposed[len(proposed) // 2], proposed[-1]]


def extremes(rows: str, shape: tuple[int, int], columns: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Operands whose sums are the largest and smallest there are, and some that alternate."""
    low, high = np.iinfo(rows).min, np.iinfo(rows).max
    found = []
    for a in (low, high):
        for b in (-128, 127):
            found.append((np.full(shape, a, rows), np.full((shape[1], columns), b, "int8")))
    x, w = np.full(shape, high, rows), np.full((shape[1], columns), 127, "int8")
    x[:, ::2], w[1::2] = low, -128
    return [*found, (x, w)]


Arrays = list[np.ndarray]
Built = Callable[[Workload, Candidate, CPUModel], Callable[[Arrays], np.ndarray]]
"""A kernel of a candidate: of its arrays, the last one's new value."""


def packed(kernel: Kernel, arrays: Arrays) -> Arrays:
    packings = dict(kernel.packings)
    return [packings[i](array) if i in packings else array for i, array in enumerate(arrays)]


def here(workload: Workload, candidate: Candidate, device: CPUModel) -> Callable[[Arrays], np.ndarray]:
    kernel = scheduled(workload, candidate, device)
    main = module(kernel, HOST if device.obstacle() else device)["main"]

    def run(arrays: Arrays) -> np.ndarray:
        tensors = [tvm.runtime.tensor(array) for array in packed(kernel, arrays)]
        main(*tensors)
        return np.asarray(tensors[-1].numpy())

    return run


@pytest.fixture(scope="session")
def elsewhere(on_aarch64: Callable[..., np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """As `here`, in an emulator."""
    path = tmp_path_factory.mktemp("built") / "kernel.o"

    def build(workload: Workload, candidate: Candidate, device: CPUModel) -> Callable[[Arrays], np.ndarray]:
        kernel = scheduled(workload, candidate, device)
        module(kernel, device).mod.write_to_file(str(path))
        made = path.read_bytes()
        return lambda arrays: on_aarch64(made, packed(kernel, arrays))

    return build


def check_sums(name: str, rows: str, built: Built) -> None:
    device, workload = CPU(name, threads=2), sums(10, 48, 516, rows)
    for candidate in some(workload, device):
        kernel = built(workload, candidate, device)
        for x, w in extremes(rows, (10, 516), 48):
            got = kernel([x, w, np.zeros((10, 48), "int32")])
            np.testing.assert_array_equal(got, x.astype(np.int64) @ w.astype(np.int64), str(candidate))


def check_case(name: str, case: str, built: Built) -> None:
    device, (workload, reference) = CPU(name, threads=2), OTHERS[case]
    exact = [array.astype(np.int64) if array.dtype.kind in "iu" else array for array in given(workload)[:-1]]
    for candidate in some(workload, device):
        got = built(workload, candidate, device)(given(workload))
        np.testing.assert_array_equal(got, reference(*exact), str(candidate))


OTHERS = {
    **CASES,
    "conv of zero points": (conv_of_zero_points(9, 20, 24), of_zero_points),
    "int8 rows": (dense(7, 50, 33, "int8"), lambda x, w, *rest: stored(x @ w, *rest)),
}


@needs_x86
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", HERE)
def test_the_largest_sums_are_exact(name: str, rows: str) -> None:
    check_sums(name, rows, here)


@needs_x86
@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize(
    "name", [name if name == "haswell" else pytest.param(name, marks=pytest.mark.slow) for name in HERE]
)
@pytest.mark.grid
def test_candidates_are_exact(name: str, case: str) -> None:
    if name == AS_WIDE and HOST.name != name and case == "product of two":
        pytest.skip("LLVM 22 vectorises what packs words of 256 bits for AVX-512 into what fails its own verifier")
    check_case(name, case, here)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["neoverse-n1", "neoverse-v1"])
def test_the_largest_sums_are_exact_in_an_emulator(name: str, rows: str, elsewhere: Built) -> None:
    check_sums(name, rows, elsewhere)


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("name", ["neoverse-n1", pytest.param("neoverse-v1", marks=pytest.mark.slow)])
def test_candidates_are_exact_in_an_emulator(name: str, case: str, elsewhere: Built) -> None:
    check_case(name, case, elsewhere)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_bytes_are_multiplied_by_the_processors_own_instruction(name: str, rows: str, tmp_path: Path) -> None:
    if CPU(name).triple.startswith("x86_64") and not IS_X86:
        pytest.skip("LLVM here builds for another architecture")
    device, workload = CPU(name, threads=2), sums(16, 96, 64, rows)
    module(scheduled(workload, some(workload, device)[0], device), device).mod.write_to_file(str(tmp_path / "a.s"), "s")
    code = (tmp_path / "a.s").read_text()
    wanted = INSTRUCTIONS[name][ROWS.index(rows)]
    assert re.search(rf"^\s+({{vex}}\s+)?{wanted}(\.4s)?\s", code, re.MULTILINE)
    assert not re.search(r"pmaddubsw|pmulld|[su]mlal", code)  # which saturates, or takes one product at a time


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_convolutions_are_built(name: str) -> None:
    if CPU(name).triple.startswith("x86_64") and not IS_X86:
        pytest.skip("LLVM here builds for another architecture")
    device, workload = CPU(name, threads=2), conv(14, 32, 64, 3)
    code = module(scheduled(workload, some(workload, device)[0], device), device).mod.inspect_source("asm")
    assert INSTRUCTIONS[name][0] in code


def test_the_reference_knows_the_operands() -> None:
    """What `extremes` makes leaves the range of int16, in pairs and in sums."""
    for rows in ROWS:
        pairs = [int(x[0, :2].astype(int) @ w[:2, 0].astype(int)) for x, w in extremes(rows, (1, 4), 1)]
        assert min(pairs) < -(2**15) or max(pairs) > 2**15 - 1


def test_it_is_refused_without_an_instruction() -> None:
    candidate = Candidate.make(FAMILY, mr=4, nr=16, mt=1, order="m")
    for workload in (dense(8, 16, 8), product_of_two(1, 8, 16, 8)):
        refused = backends.schedule(workload, candidate, CPU("cortex-a72"))
        assert isinstance(refused, NotApplicable)
        assert "no instruction for products of uint8 and int8" in refused.reason


@pytest.mark.parametrize(
    ("features", "lanes", "rate"),
    [
        ({"avx512vnni", "avx512bw"}, 16, 4.0),
        ({"avxvnni", "avx2"}, 8, 4.0),
        ({"dotprod"}, 4, 4.0),
        ({"dotprod", "i8mm"}, 4, 4.0),
        ({"neon"}, 4, 1.0),
        ({"avx512vnni"}, 8, 1.0),
    ],
)
def test_the_rate_of_bytes_is_that_of_the_best_instruction(features: set[str], lanes: int, rate: float) -> None:
    assert bytes_per_multiply_add(features, lanes) == rate
    assert 1.0 < bytes_per_multiply_add({"avx2"}, 8) < 2.0


def test_a_processor_takes_the_cheapest_of_its_instructions() -> None:
    both = byte_dot("uint8", {"avx2", "avxvnni"}, 8)
    assert both is not None
    assert both.feature == "avxvnni"
    turned, own = (byte_dot("uint8", features, 4) for features in ({"dotprod"}, {"dotprod", "i8mm"}))
    assert turned is not None
    assert own is not None
    assert (turned.feature, own.feature) == ("dotprod", "i8mm")


@pytest.mark.parametrize(
    ("name", "rows"),
    [("icelake-server", "uint8"), ("alderlake", "uint8"), ("haswell", ""), ("neoverse-n1", "int8"), ("apple-m2", "")],
)
def test_activations_have_the_sign_of_the_cheapest_product(name: str, rows: str) -> None:
    device = CPU(name)
    assert cheapest_rows(device.features, device.lanes()) == rows
    assert BACKEND.forms(device).byte_rows == rows
