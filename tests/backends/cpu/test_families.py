"""Every candidate the policy proposes computes what the unscheduled function computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.lowering.pipeline import flat
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import Numerics
from subtune.core.record import func_hash
from subtune.core.workload import Workload
from subtune.tir.blocks import root_stages
from tests.backends.workloads import (
    batch_matmul,
    conv,
    dense,
    elementwise,
    global_pool,
    layer_norm,
    matmul,
    max_pool,
    softmax,
    transpose,
)

Run = Callable[[Workload, Kernel | None], np.ndarray]

CASES = {
    "conv3x3": lambda: conv(14, 16, 32, 3),
    "conv1x1 stride 2": lambda: conv(14, 16, 32, 1, stride=2),
    "conv, channels no multiple of the lanes": lambda: conv(9, 5, 21, 3, batch=2),
    "stem": lambda: conv(20, 3, 16, 7, stride=2),
    "depthwise": lambda: conv(14, 24, 24, 3, groups=24),
    "grouped": lambda: conv(7, 16, 32, 3, groups=4),
    "dense": lambda: dense(32, 64, 40),
    "dense, prime rows, odd columns": lambda: dense(37, 50, 24),
    "dense, long reduction": lambda: dense(16, 32, 1024),
    "dense, three columns": lambda: dense(37, 3, 50),
    "dense, a vector of each": lambda: dense(20, 5, 16),
    "gemv": lambda: dense(1, 100, 64),
    "batch matmul": lambda: batch_matmul(3, 16, 32, 20),
    "matrix product, nothing constant": lambda: matmul(37, 70, 24),
    "attention scores, columns no multiple of the lanes": lambda: batch_matmul(3, 17, 37, 32, transposed=True),
    "attention scores": lambda: batch_matmul(3, 17, 19, 20, transposed=True),
    "max pool": lambda: max_pool(13, 32),
    "global pool": lambda: global_pool(7, 40),
    "softmax": lambda: softmax(12, 64),
    "softmax, odd": lambda: softmax(5, 19),
    "layer norm": lambda: layer_norm(8, 96),
    "elementwise": lambda: elementwise(6, 5, 24),
    "elementwise, odd": lambda: elementwise(7, 13),
    "transpose": lambda: transpose(1, 3, 12, 14),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_candidates_are_right(case: str, run: Run, device: CPUModel) -> None:
    workload = CASES[case]()
    expected = run(workload, None)
    scale = np.abs(expected).max()
    proposed = backends.candidates(workload, device, topk=40)
    # the first, the last, and a few between: the tail is where padding and odd tiles are
    for candidate in [DEFAULT, *proposed[:3], *proposed[3::7]]:
        kernel = backends.schedule(workload, candidate, device)
        assert isinstance(kernel, Kernel), f"{candidate}: {kernel}"
        got = run(workload, kernel)
        tolerance = 2e-5 if candidate.family in ("winograd", "strassen") else 2e-6
        assert np.abs(got - expected).max() <= tolerance * scale, f"{candidate} on {case}"


@pytest.mark.parametrize("case", [c for c in CASES if c != "grouped"])
def test_policy_finds_a_template(case: str, device: CPUModel) -> None:
    assert backends.candidates(CASES[case](), device)


@pytest.mark.parametrize("case", ["conv3x3", "depthwise", "dense"])
def test_candidates_of_a_workload_leave_one_another_alone(case: str, device: CPUModel) -> None:
    workload, fresh = CASES[case](), CASES[case]()
    first, *others = backends.candidates(workload, device, topk=4)
    made = [backends.schedule(workload, candidate, device) for candidate in (first, *others, first)]
    made.append(backends.schedule(fresh, first, device))
    hashes = [func_hash(kernel.func) for kernel in made if isinstance(kernel, Kernel)]
    assert len(hashes) == 6
    assert hashes[0] == hashes[4] == hashes[5]


def test_candidates_are_deterministic_and_best_first(device: CPUModel) -> None:
    workload = conv(14, 16, 32, 3)
    first, second = (backends.candidates(workload, device) for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first) == 20
    predicted = [c.predicted_s for c in first]
    assert predicted[0] == min(predicted)
    assert all(p > 0 for p in predicted)


@pytest.mark.parametrize("name", ["znver4", "haswell", "x86-64"])
def test_accumulators_fit_the_registers_of_the_target(name: str) -> None:
    device = CPU(name, threads=2)
    for candidate in backends.candidates(dense(64, 96, 64), device):
        vectors = int(candidate["nr"]) // device.lanes()
        assert int(candidate["mr"]) * vectors + vectors + 1 <= device.vector_registers


def test_narrower_target_is_right(run: Run) -> None:
    """An AVX2 machine's candidates, on this machine."""
    device = CPU("haswell", threads=2)
    workload = conv(9, 5, 21, 3)
    expected = run(workload, None)
    for candidate in backends.candidates(workload, device)[:3]:
        kernel = backends.schedule(workload, candidate, device)
        assert isinstance(kernel, Kernel)
        assert np.abs(run(workload, kernel) - expected).max() <= 2e-6 * np.abs(expected).max()


def test_constants_are_packed_and_others_are_not(device: CPUModel) -> None:
    constant = dense(32, 64, 40)
    candidate = Candidate.make("contraction", mr=4, nr=32, mt=1, order="m")
    kernel = backends.schedule(constant, candidate, device)
    assert isinstance(kernel, Kernel)
    ((index, packing),) = kernel.packings
    assert constant.args[index].shape == (40, 64)
    assert packing.shape == (2, 40, 32)
    assert tuple(int(d) for d in kernel.func.params[index].shape) == packing.shape

    online = backends.schedule(batch_matmul(3, 16, 32, 20, transposed=True), candidate, device)
    assert isinstance(online, Kernel)
    assert online.packings == ()


PRODUCTS: dict[str, tuple[Callable[[int, int, int], Workload], bool]] = {
    "constant": (dense, False),
    "packed online": (matmul, True),
    "in place": (matmul, False),
    "turned": (lambda m, n, k: batch_matmul(2, m, n, k, transposed=True), False),
}


@pytest.mark.parametrize("is_serial", [False, True])
@pytest.mark.parametrize("order", ["m", "n", "mn", "nm"])
@pytest.mark.parametrize("case", PRODUCTS)
@pytest.mark.grid
def test_a_last_tile_computes_no_vector_of_padding(
    case: str, order: str, is_serial: bool, run: Run, device: CPUModel
) -> None:
    """197 columns are 13 vectors: four tiles of three and one of one, the last lanes of which are not stored."""
    make, pack = PRODUCTS[case]
    lanes, mt = device.lanes(), 3 if order == "m" else 1
    workload = make(13, 12 * lanes + 5, 32)
    candidate = Candidate.make(
        "contraction", mr=5, nr=3 * lanes, mt=mt, order=order, serial=is_serial, **({"pack": True} if pack else {})
    )
    kernel = backends.schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel), kernel
    updates = [loop for loop in loops_of(kernel) if loop.kind == tirx.ForKind.UNROLLED and holds_update(loop)]
    assert {int(loop.extent) for loop in updates} == {5, 3, 1}
    assert all(allocated <= 5 * 3 * lanes for allocated in sums_of(kernel, device)), "the sums stay in registers"
    expected = run(workload, None)
    assert np.abs(run(workload, kernel) - expected).max() <= 2e-6 * np.abs(expected).max()


def test_a_single_tile_may_be_wider_than_the_columns(run: Run, device: CPUModel) -> None:
    workload = batch_matmul(3, 17, 19, 20, transposed=True)
    expected = run(workload, None)
    for nr in (32, 48):
        candidate = Candidate.make("contraction", mr=5, nr=nr, mt=1, order="m")
        kernel = backends.schedule(workload, candidate, device)
        assert isinstance(kernel, Kernel)
        assert np.abs(run(workload, kernel) - expected).max() <= 2e-6 * np.abs(expected).max()


def loops_of(kernel: Kernel) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(kernel.func.body, (tirx.For, found.append))
    return found


def holds_update(loop: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(loop, (SBlock, lambda block: found.append(block.name_hint)))
    return any(name.endswith("_update") for name in found)


def sums_of(kernel: Kernel, device: CPUModel) -> list[int]:
    """Elements of the buffers that are no memory once the kernel is lowered."""
    func = kernel.func.with_attr("global_symbol", "main").with_attr("target", device.target())
    found: list[Any] = []
    tvm_ffi.structural_walk(flat(tvm.IRModule({"main": func}))["main"].body, (tirx.AllocBuffer, found.append))
    return [int(alloc.buffer.shape[0]) for alloc in found if alloc.buffer.scope() == "local"]


@pytest.mark.parametrize("shape", [(37, 70, 24), (16, 64, 1), (5, 100, 33), (64, 96, 128)])
@pytest.mark.parametrize("order", ["n", "nm"])
def test_a_panel_is_packed_by_the_rows_that_read_it_first(
    shape: tuple[int, int, int], order: str, run: Run, device: CPUModel
) -> None:
    workload = matmul(*shape)
    for mr, mt in ((4, 1), (4, 2), (8, 1)):
        candidate = Candidate.make("contraction", mr=mr, nr=32, mt=mt, order=order, pack=True)
        kernel = backends.schedule(workload, candidate, device)
        assert isinstance(kernel, Kernel), kernel
        (root,) = root_stages(kernel.func)
        assert root.kind == tirx.ForKind.PARALLEL, "nothing is packed before"
        expected = run(workload, None)
        assert np.abs(run(workload, kernel) - expected).max() <= 2e-6 * np.abs(expected).max()


def test_a_matrix_with_ragged_rows_is_turned_by_shuffles(device: CPUModel) -> None:
    lanes = device.lanes()
    workload = batch_matmul(3, 17, 2 * lanes + 5, 2 * lanes, transposed=True)
    candidate = Candidate.make("contraction", mr=4, nr=2 * lanes, mt=1, order="m")
    kernel = backends.schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel)
    assert "T.Shuffle" in kernel.func.script()


def test_loops_that_are_the_same_are_proposed_once(device: CPUModel) -> None:
    for workload in (matmul(64, 4096, 256), batch_matmul(12, 197, 197, 64, transposed=True), conv(14, 16, 32, 3)):
        proposed = [c for c in backends.candidates(workload, device, topk=10**4) if c.family == "contraction"]
        kernels = [backends.schedule(workload, candidate, device) for candidate in proposed[:12]]
        hashes = [func_hash(kernel.func) for kernel in kernels if isinstance(kernel, Kernel)]
        assert len(set(hashes)) == len(hashes) == 12


def test_tiles_have_sums_enough_where_wider_ones_are_as_good() -> None:
    device = CPU("znver4", threads=2)
    least = device.fma_per_cycle * device.fma_latency
    for candidate in backends.candidates(dense(3, 4096, 64), device):
        assert int(candidate["mr"]) * int(candidate["nr"]) // device.lanes() >= least
    narrow = backends.candidates(dense(3, 32, 64), device)
    assert any(candidate["nr"] == 16 for candidate in narrow), "a wider one has no panel for every thread"


@pytest.mark.parametrize(("m", "tolerance"), [(2, 2e-6), (4, 2e-5)])
@pytest.mark.parametrize("order", [{"fuse": False}, {"fuse": True}, {"fuse": False, "shares": True}])
@pytest.mark.parametrize("size", [8, 13])
def test_winograd(m: int, tolerance: float, order: dict[str, bool], size: int, run: Run, device: CPUModel) -> None:
    """Tiles that fit the output and tiles that overhang it, two images."""
    workload, device = conv(size, 32, 64, 3, batch=2), replace(device, threads=2)
    expected = run(workload, None)
    kernel = backends.schedule(workload, Candidate.make("winograd", m=m, mr=4, nr=16, **order), device)
    assert isinstance(kernel, Kernel)
    assert np.abs(run(workload, kernel) - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("shares", [False, True])
def test_winograd_in_register_tiles_that_do_not_divide_an_image(
    batch: int, prefetch: bool, shares: bool, run: Run, device: CPUModel
) -> None:
    """Four tiles an image, by three and by ten: the last one is transformed and multiplied again."""
    workload, device = conv(8, 32, 64, 3, batch=batch), replace(device, threads=2)
    expected = run(workload, None)
    for mr in (3, 10):
        knobs = {"m": 4, "mr": mr, "nr": 16, "fuse": False, "shares": shares}
        candidate = Candidate.make("winograd", **knobs, prefetch=prefetch, passes=2)
        kernel = backends.schedule(workload, candidate, device)
        assert isinstance(kernel, Kernel)
        assert np.abs(run(workload, kernel) - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize(("m", "tolerance"), [(2, 2e-6), (4, 2e-5)])
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize(
    ("cin", "cout", "groups", "nr"), [(64, 64, 4, 16), (48, 96, 2, 48), (16, 64, 4, 16), (64, 64, 8, 8)]
)
@pytest.mark.grid
def test_winograd_of_groups(
    m: int, tolerance: float, fuse: bool, cin: int, cout: int, groups: int, nr: int, run: Run, device: CPUModel
) -> None:
    """Columns of several panels to a group, groups with fewer channels than columns, and half a vector each."""
    workload = conv(13, cin, cout, 3, groups=groups)
    assert any(c.family == "winograd" for c in backends.candidates(workload, device))
    expected = run(workload, None)
    kernel = backends.schedule(workload, Candidate.make("winograd", m=m, mr=4, nr=nr, fuse=fuse), device)
    assert isinstance(kernel, Kernel)
    assert np.abs(run(workload, kernel) - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (lambda: conv(14, 16, 32, 3, stride=2), "stride"),
        (lambda: conv(14, 64, 64, 3, groups=32), "no vectors of half"),
        (lambda: conv(14, 64, 64, 3, groups=8), "8 channels are no multiple of nr=16"),
        (lambda: conv(14, 16, 32, 1), "window is not 3x3"),
        (lambda: dense(32, 64, 40), "not a 2-D convolution"),
        (lambda: conv(14, 16, 24, 3), "channels"),
        (lambda: conv(14, 32, 48, 3), "not shared out evenly"),
    ],
)
def test_winograd_says_why_it_does_not_apply(workload: Callable[[], Workload], reason: str, device: CPUModel) -> None:
    candidate = Candidate.make("winograd", m=2, mr=4, nr=16, fuse=False, shares=True)
    refused = backends.schedule(workload(), candidate, replace(device, threads=2))
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason


def test_split_k_is_proposed_for_long_reductions_only(device: CPUModel) -> None:
    assert "split_k" in {c.family for c in backends.candidates(dense(16, 32, 1024), device)}
    assert "split_k" not in {c.family for c in backends.candidates(dense(64, 64, 64), device)}


def test_few_columns_are_dot_products(device: CPUModel) -> None:
    assert backends.candidates(dense(4000, 3, 64), device)[0].family == "dots"
    assert "dots" not in {c.family for c in backends.candidates(dense(4000, 16, 64), device)}
    refused = backends.schedule(dense(40, 3, 8), Candidate.make("dots", mr=4), device)
    assert isinstance(refused, NotApplicable)
    assert "none along k" in refused.reason


def test_exact_math_leaves_out_what_rounds_differently(device: CPUModel) -> None:
    exact = replace(as_device(device), numerics=Numerics(exact=True))
    assert exact.fingerprint() != device.fingerprint()
    assert {c.family for c in backends.candidates(conv(28, 64, 64, 3), exact)} == {"contraction"}
    gelu = dense(32, 64, 40)
    candidate = backends.candidates(gelu, exact)[0]
    scripts = [backends.schedule(gelu, candidate, d).func.script() for d in (exact, device)]
    assert ["T.erf" in script for script in scripts] == [True, False]


def test_every_implementation_gets_a_share(device: CPUModel) -> None:
    proposed = backends.candidates(conv(28, 64, 64, 3), device, topk=8)
    assert {c.family for c in proposed} == {"contraction", "winograd", *(["amx_parts"] if device.has_tiles else [])}


def test_what_does_not_apply_says_why(device: CPUModel) -> None:
    contraction = Candidate.make("contraction", mr=4, nr=32, mt=1, order="m")
    reason = backends.schedule(elementwise(4, 32), contraction, device)
    assert isinstance(reason, NotApplicable)
    assert "no single anchor" in reason.reason
    ragged = Candidate.make("contraction", mr=4, nr=device.lanes() + 4, mt=1, order="m")
    narrow = backends.schedule(dense(32, 64, 40), ragged, device)
    assert isinstance(narrow, NotApplicable)
    assert "vector lanes" in narrow.reason
    unknown = backends.schedule(dense(4, 16, 8), Candidate("nonesuch"), device)
    assert isinstance(unknown, NotApplicable)


def test_the_trace_replays_the_schedule(device: CPUModel, run: Run) -> None:
    """A kernel that is a trace of its workload gives the same function when the trace is applied to the workload."""
    from tvm.s_tir import Schedule

    workload = max_pool(13, 32)
    kernel = backends.schedule(workload, backends.candidates(workload, device)[0], device)
    assert isinstance(kernel, Kernel)
    assert kernel.trace is not None
    replayed = Schedule(workload.func)
    kernel.trace.apply_to_schedule(replayed, remove_postproc=False)
    assert np.array_equal(run(workload, Kernel(replayed.mod["main"])), run(workload, kernel))


@pytest.mark.parametrize("make", [lambda: conv(7, 24, 80, 1), lambda: conv(9, 16, 48, 3), lambda: dense(21, 48, 40)])
def test_rows_shared_as_well_as_panels(make: Callable[[], Workload], run: Run, device: CPUModel) -> None:
    """Order "nm", which the policy proposes where the threads cannot share the panels evenly."""
    workload = make()
    kernel = backends.schedule(workload, Candidate.make("contraction", mr=4, nr=16, mt=1, order="nm"), device)
    assert isinstance(kernel, Kernel), kernel
    assert np.allclose(run(workload, kernel), run(workload, None), rtol=1e-4, atol=1e-4)


def test_panels_that_divide_evenly_are_not_shared_by_rows() -> None:
    device = CPU("znver4", threads=2)
    even, uneven = (backends.candidates(conv(7, 960, n, 1), device, topk=10**4) for n in (64, 160))
    assert {c["nr"] for c in uneven if c.family == "contraction" and c["order"] == "nm"} >= {32}
    assert 32 not in {c["nr"] for c in even if c.family == "contraction" and c["order"] == "nm"}
