"""Grouped convolutions, reductions by columns, transposes, packing turned in registers: right on odd shapes."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import Numerics
from subtune.core.workload import Workload
from tests.backends.workloads import batch_matmul, build, conv, global_pool, layer_norm, softmax

Run = Callable[[Workload, Kernel | None], np.ndarray]
Shape = tuple[int, ...]


def _permuted(shape: tuple[int, ...], order: tuple[int, ...]) -> Workload:
    return build(lambda emit, x: op.permute_dims(x, order), [shape])


def _permuted_with_bias(*shape: int) -> Workload:
    """relu(x^T + b) of a slice: the operand lies transposed, the bias does not."""

    def body(emit: Any, x: Any, b: Any) -> Any:
        inner = emit(op.strided_slice(x, [1], [1], [shape[1]], [1]))
        return op.nn.relu(emit(op.permute_dims(emit(op.add(inner, b)), [0, 3, 1, 2])))

    return build(body, [shape], [(1, 1, 1, shape[-1])])


def _scaled(*shape: int) -> Workload:
    """gelu(x * s) with a scale for each channel, channels first."""
    scale = (1, shape[1], *(1 for _ in shape[2:]))
    return build(lambda emit, x, s: op.nn.gelu(emit(op.multiply(x, s))), [shape, scale])


def _joined(rows: int, columns: int) -> Workload:
    return build(lambda emit, x, y: op.concat((x, y), 1), [(rows, columns), (rows, columns)])


def _product(m: int, n: int, k: int) -> Workload:
    return build(lambda emit, a, b: op.matmul(a, b), [(m, k), (k, n)])


def _softmax(axis: int, *shape: int) -> Workload:
    return build(lambda emit, x: op.nn.softmax(x, axis), [shape])


def _instance_norm(*shape: int) -> Workload:
    def body(emit: Any, x: Any, g: Any, b: Any) -> Any:
        return op.nn.relu(emit(op.nn.instance_norm(x, g, b, channel_axis=3, axes=[1, 2])))

    return build(body, [shape], [(shape[-1],), (shape[-1],)])


def _group_norm(groups: int, *shape: int, channel_axis: int = 3) -> Workload:
    axes = [axis for axis in range(1, len(shape)) if axis != channel_axis]
    channels = (shape[channel_axis],)

    def body(emit: Any, x: Any, g: Any, b: Any) -> Any:
        return op.nn.silu(emit(op.nn.group_norm(x, g, b, groups, channel_axis, axes)))

    return build(body, [shape], [channels, channels])


def _argmax(axis: int, *shape: int) -> Workload:
    return build(lambda emit, x: op.argmax(x, axis, keepdims=True), [shape])


CASES: dict[str, tuple[Callable[[], Workload], str]] = {
    "4 channels to a group": (lambda: conv(8, 32, 32, 3, groups=8), "grouped"),
    "half a vector's channels to a group, stride 2": (
        lambda: conv(9, 32, 32, 3, stride=2, groups=64 // CPU("auto").lanes()),
        "grouped",
    ),
    "a depthwise multiplier of 2": (lambda: conv(7, 16, 32, 3, groups=16), "grouped"),
    "3 channels to a group": (lambda: conv(6, 48, 48, 3, groups=16), "grouped"),
    "2 channels to a group, half a vector of them": (lambda: conv(6, 20, 8, 5, groups=4), "grouped"),
    "3 channels to a group, whole vectors do not divide them": (lambda: conv(6, 16, 24, 3, groups=8), "grouped"),
    "16 channels to a group": (lambda: conv(7, 32, 64, 3, groups=4), "contraction"),
    "20 channels to a group, 1x1": (lambda: conv(7, 24, 60, 1, groups=3), "contraction"),
    "grouped, two images, narrow rows": (lambda: conv(5, 32, 32, 1, groups=2, batch=2), "contraction"),
    "softmax over channels": (lambda: _softmax(1, 1, 21, 6, 32), "columns"),
    "softmax, few columns": (lambda: _softmax(1, 3, 7, 5, 4), "columns"),
    "instance norm": (lambda: _instance_norm(2, 5, 7, 48), "columns"),
    "group norm": (lambda: _group_norm(8, 1, 9, 5, 32), "columns"),
    "group norm, odd groups": (lambda: _group_norm(8, 2, 6, 5, 80), "columns"),
    "group norm, channels first": (lambda: _group_norm(3, 2, 12, 5, 7, channel_axis=1), "rowwise"),
    "argmax over channels": (lambda: _argmax(1, 1, 5, 3, 32), "columns"),
    "global pool": (lambda: global_pool(7, 40), "columns"),
    "softmax, rows end in shuffles": (lambda: softmax(6, 96), "rowwise"),
    "layer norm, odd": (lambda: layer_norm(3, 75), "rowwise"),
    "transpose": (lambda: _permuted((33, 47), (1, 0)), "transpose"),
    "transpose of merged axes": (lambda: _permuted((2, 20, 5, 7), (0, 2, 3, 1)), "transpose"),
    "transpose back": (lambda: _permuted((2, 5, 7, 20), (0, 3, 1, 2)), "transpose"),
    "transpose of all axes": (lambda: _permuted((18, 3, 17), (2, 1, 0)), "transpose"),
    "image to channels last": (lambda: _permuted((2, 3, 5, 7), (0, 2, 3, 1)), "transpose"),
    "image to channels first": (lambda: _permuted((2, 5, 7, 3), (0, 3, 1, 2)), "transpose"),
    "heads": (lambda: _permuted((1, 19, 2, 24), (0, 2, 3, 1)), "transpose"),
    "transpose of short axes": (lambda: _permuted((5, 7), (1, 0)), "transpose"),
    "slice, bias, transpose of few channels": (lambda: _permuted_with_bias(2, 6, 5, 8), "transpose"),
    "slice, bias, transpose": (lambda: _permuted_with_bias(2, 6, 5, 37), "transpose"),
    "to one channel": (lambda: conv(6, 32, 1, 3), "rowwise"),
    "scaled planes, no vector divides a row": (lambda: _scaled(2, 3, 9, 5), "elementwise"),
    "scaled planes, of rows of one axis": (lambda: _scaled(2, 5, 37), "elementwise"),
    "joined": (lambda: _joined(6, 32), "elementwise"),
    "scores": (lambda: batch_matmul(3, 17, 32, 48, transposed=True), "contraction"),
    "scores, one batch": (lambda: batch_matmul(1, 17, 48, 32, transposed=True), "contraction"),
    "scores of 40": (lambda: batch_matmul(3, 17, 37, 40, transposed=True), "contraction"),
    "scores, one batch, odd": (lambda: batch_matmul(1, 17, 48, 37, transposed=True), "contraction"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_candidates_are_right(case: str, run: Run, device: CPUModel) -> None:
    make, template = CASES[case]
    workload = make()
    expected = run(workload, None)
    scale = max(float(np.abs(expected).max()), 1e-6)
    proposed = [c for c in backends.candidates(workload, device, topk=40) if c.family == template]
    assert proposed, f"no candidate of {template}"
    for candidate in [*proposed[:2], *proposed[2::15]]:
        kernel = backends.schedule(workload, candidate, device)
        assert isinstance(kernel, Kernel), f"{candidate}: {kernel}"
        assert np.abs(run(workload, kernel) - expected).max() <= 3e-6 * scale, f"{candidate} on {case}"


def test_rows_of_no_whole_vectors_end_in_a_part_of_one(device: CPUModel) -> None:
    """Also where the row is that of two axes; not where all operands are alike, or vectors divide the row.

    Operands that are alike are one row, for functions.
    """

    def shapes(workload: Workload) -> set[object]:
        return {c.get("shape") for c in backends.candidates(workload, device, topk=40) if c.family == "elementwise"}

    assert "ragged" in shapes(_scaled(2, 3, 9, 5))
    assert "ragged" not in shapes(_scaled(2, 3, 8, device.lanes()))
    assert "ragged" not in shapes(build(lambda emit, x, y: op.add(x, y), [(3, 45), (3, 45)]))
    assert "ragged" in shapes(build(lambda emit, x, y: op.exp(emit(op.add(x, y))), [(3, 45), (3, 45)]))
    short = backends.schedule(
        _scaled(2, 5, 3), Candidate.make("elementwise", shape="ragged", unroll=1, wide=False), device
    )
    assert isinstance(short, NotApplicable)
    assert "shorter than a vector" in short.reason


def test_tiles_of_functions_are_loops(device: CPUModel) -> None:
    """A polynomial in each of sixteen unrolled rows takes LLVM seconds."""

    def script(body: Callable[..., Any]) -> str:
        kernel = backends.schedule(build(body, [(32, 64), (32, 64)]), tile, device)
        assert isinstance(kernel, Kernel)
        return str(kernel.func.script())

    tile = Candidate.make("elementwise", shape="tile", unroll=1, wide=False)
    assert "T.unroll" in script(lambda emit, x, y: op.concat((x, y), 1))
    assert "T.unroll" not in script(lambda emit, x, y: op.concat((emit(op.tanh(x)), y), 1))


@pytest.mark.parametrize("case", ["4 channels to a group", "transpose", "transpose back", "scores", "layer norm, odd"])
def test_narrower_vectors_are_right(case: str, run: Run) -> None:
    """An AVX2 machine's candidates, on this machine."""
    device = CPU("haswell", threads=2)
    workload = CASES[case][0]()
    expected = run(workload, None)
    for candidate in backends.candidates(workload, device)[:3]:
        kernel = backends.schedule(workload, candidate, device)
        assert isinstance(kernel, Kernel), f"{candidate}: {kernel}"
        assert np.abs(run(workload, kernel) - expected).max() <= 3e-6 * np.abs(expected).max()


@pytest.mark.parametrize("order", ["m", "n", "mn"])
def test_a_matrix_that_lies_well_can_be_packed_too(order: str, run: Run, device: CPUModel) -> None:
    workload = _product(33, 45, 20)
    knobs = {"mr": 4, "nr": 32, "mt": 3, "order": order}
    packed, read = (
        backends.schedule(workload, Candidate.make("contraction", **knobs, **more), device)
        for more in ({"pack": True}, {})
    )
    assert isinstance(packed, Kernel)
    assert isinstance(read, Kernel)
    assert packed.func.script() != read.func.script()
    assert np.allclose(run(workload, packed), run(workload, None), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("width", "packs"), [(1024, True), (256, False)])
def test_rows_of_whole_pages_are_packed_first(width: int, packs: bool, device: CPUModel) -> None:
    """Read as they lie, all rows of such a matrix would lie in the same few sets of L1."""
    proposed = [c for c in backends.candidates(_product(256, width, 512), device) if c.family == "contraction"]
    assert [bool(c.get("pack")) for c in proposed[:3]] == [packs] * 3
    assert not all(c.get("pack") for c in proposed)


def test_a_slice_costs_what_it_reads(device: CPUModel) -> None:

    def first(rows: int) -> Workload:
        return build(lambda emit, x: op.strided_slice(x, [0], [0], [rows], [1]), [(640, 1024)])

    few, many = (backends.candidates(first(rows), device)[0] for rows in (1, 320))
    assert few.is_serial
    assert not many.is_serial
    assert 100 * few.predicted_s < many.predicted_s


def test_many_joined_inputs_are_written_section_by_section(device: CPUModel) -> None:
    rows = build(lambda emit, *x: op.concat(x, 0), [(1, 256)] * 40)
    shapes = [candidate.get("shape") for candidate in backends.candidates(rows, device)]
    assert shapes[0] == "sections"  # in an LSTM less than half of what tiles take
    assert "tile" in shapes


@pytest.mark.parametrize(
    "make",
    [
        lambda: global_pool(8, 48),
        lambda: build(lambda emit, x: op.sum(x, 0), [(64, 96)]),
        lambda: _group_norm(8, 2, 8, 8, 32),
        lambda: _instance_norm(2, 4, 16, 48),
        lambda: _softmax(1, 1, 64, 2, 32),
    ],
)
@pytest.mark.parametrize("rows", [4, 16])
def test_rows_in_pieces_give_the_same(make: Callable[[], Workload], rows: int, run: Run) -> None:
    device = CPU("auto", threads=2)
    workload = make()
    kernel = backends.schedule(workload, Candidate.make("pieces", rows=rows), device)
    assert isinstance(kernel, Kernel), kernel
    assert "T.parallel" in kernel.func.script()
    expected = run(workload, None)
    assert np.abs(run(workload, kernel) - expected).max() <= 3e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    "make",
    [
        lambda: _group_norm(8, 2, 8, 8, 32),
        lambda: _group_norm(8, 2, 3, 8, 80),
        lambda: _instance_norm(2, 4, 16, 48),
        lambda: _instance_norm(1, 8, 8, 32),
    ],
)
@pytest.mark.parametrize("rows", [4, 8])
def test_moments_of_one_reading_are_those_of_two(make: Callable[[], Workload], rows: int, run: Run) -> None:
    device = CPU("auto", threads=2)
    workload = make()
    kernel = backends.schedule(workload, Candidate.make("moments", rows=rows), device)
    assert isinstance(kernel, Kernel), kernel
    assert kernel.func.script().count("T.parallel") == 2
    expected = run(workload, None)
    assert np.abs(run(workload, kernel) - expected).max() <= 3e-6 * np.abs(expected).max()


def test_variances_beside_large_means_lose_no_digits(device: CPUModel) -> None:
    """The mean of squares less the square of the mean would have none left."""
    workload = _instance_norm(1, 16, 16, 32)
    kernel = backends.schedule(workload, Candidate.make("moments", rows=8), device)
    assert isinstance(kernel, Kernel)
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(arg.shape).astype("float32") for arg in workload.args]
    arrays[0] += 3000.0
    module = tvm.compile(kernel.func.with_attr("global_symbol", "main"), device.target(), tir_pipeline=PIPELINE)
    module["main"](*arrays)
    x, gamma, beta, result = arrays
    x = x.astype("float64")
    exact = np.maximum((x - x.mean((1, 2))) / np.sqrt(x.var((1, 2)) + 1e-5) * gamma + beta, 0)
    assert np.abs(result - exact).max() <= 1e-3


def test_norms_from_afar_are_read_twice_not_thrice() -> None:
    device = CPU("auto", threads=2)

    def templates_of(height: int) -> set[str]:
        workload = _group_norm(8, 1, height, 64, 64)
        return {candidate.family for candidate in backends.candidates(workload, device)}

    assert "moments" in templates_of(device.l2_bytes // 2**14)
    assert "moments" not in templates_of(4), "it stays in a cache"


def test_rows_from_afar_are_read_in_pieces_too() -> None:
    device = CPU("auto", threads=2)

    def templates_of(rows: int) -> set[str]:
        workload = build(lambda emit, x: op.sum(x, 0), [(rows, 64)])
        return {candidate.family for candidate in backends.candidates(workload, device)}

    assert "pieces" in templates_of(device.l2_bytes // 64)
    assert "pieces" not in templates_of(64), "it stays in a cache"
    assert "pieces" not in templates_of(device.l2_bytes // 64 + 1), "no whole pieces"


def test_a_row_is_divided_by_multiplying(device: CPUModel) -> None:
    kernel = backends.schedule(softmax(8, 64), Candidate.make("rowwise", unroll=1), device)
    assert isinstance(kernel, Kernel)
    assert "1.0) / T_softmax_expsum" in kernel.func.script()
    exact = backends.schedule(
        softmax(8, 64), Candidate.make("rowwise", unroll=1), replace(as_device(device), numerics=Numerics(exact=True))
    )
    assert isinstance(exact, Kernel)
    assert "1.0) / T_softmax_expsum" not in exact.func.script()


def test_joined_inputs_are_copied_without_questions(device: CPUModel) -> None:
    """Where a vector of a row comes from is known when the row is unrolled."""
    rows = Candidate.make("elementwise", shape="rows", unroll=1, wide=False)
    kernel = backends.schedule(_joined(6, 32), rows, device)
    assert isinstance(kernel, Kernel)
    assert "T.unroll" in kernel.func.script()


@pytest.mark.parametrize("case", [case for case, (_, template) in CASES.items() if template == "transpose"])
@pytest.mark.parametrize("rows", [32, 64])
@pytest.mark.grid
def test_transposes_in_blocks_are_right(case: str, rows: int, run: Run, device: CPUModel) -> None:
    """Ragged ones as well: the last blocks overlap their neighbours."""
    workload = CASES[case][0]()
    for candidate in (Candidate.make("transpose", rows=rows), Candidate.make("transpose", rows=rows, serial=True)):
        kernel = backends.schedule(workload, candidate, device)
        if isinstance(kernel, Kernel):
            assert np.abs(run(workload, kernel) - run(workload, None)).max() <= 1e-6
        else:
            assert "shorter than a vector" in kernel.reason


def test_several_blocks_of_a_transpose_are_right(run: Run, device: CPUModel) -> None:
    wide = device.lanes() ** 2
    to_channels_last = (0, 2, 3, 1)
    for shape, axes in (
        ((2, 150, wide + 7, 3), to_channels_last),
        ((1, 40, wide, 2), to_channels_last),
        ((1, 20, 6, 3), to_channels_last),
        ((3, 16, 16), (0, 2, 1)),
    ):
        workload = _permuted(shape, axes)
        for threads in (1, 2, 4):
            candidate = Candidate.make("transpose", rows=4 * device.lanes())
            kernel = backends.schedule(workload, candidate, replace(device, threads=threads))
            assert isinstance(kernel, Kernel)
            assert np.array_equal(run(workload, kernel), run(workload, None))


@pytest.mark.parametrize("name", ["skylake-avx512", "haswell", "nehalem"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((256, 128), (1, 0)),
        ((150, 201), (1, 0)),
        ((1, 64, 16, 16), (0, 2, 3, 1)),
        ((2, 9, 11, 70), (0, 3, 1, 2)),
        ((3, 70, 5, 67), (2, 0, 3, 1)),
    ],
)
@pytest.mark.grid
def test_transposes_in_whole_blocks_are_right(name: str, shape: Shape, order: Shape, run: Run) -> None:
    """Tiles of half a vector's width, for every width of vectors; ragged blocks overlap their neighbours."""
    workload = _permuted(shape, order)
    expected = run(workload, None)
    for threads, knobs in ((1, {"rows": 64, "columns": 32}), (3, {"rows": 32, "columns": 64}), (2, {"serial": True})):
        candidate = Candidate.make("transpose", **{"rows": 16, "columns": 16, **knobs})
        kernel = backends.schedule(workload, candidate, CPU(name, threads=threads))
        assert isinstance(kernel, Kernel), kernel
        assert np.array_equal(run(workload, kernel), expected), candidate


def test_other_operands_of_what_is_turned_in_whole_blocks_are_read_in_place(run: Run, device: CPUModel) -> None:
    workload = _permuted_with_bias(2, 6, 50, 37)
    kernel = backends.schedule(workload, Candidate.make("transpose", rows=32, columns=32), device)
    assert isinstance(kernel, Kernel)
    assert np.abs(run(workload, kernel) - run(workload, None)).max() <= 1e-6


def test_transposes_in_whole_blocks_are_for_what_is_not_in_l2(device: CPUModel) -> None:
    near = replace(device, l2_bytes=1 << 20)

    def blocks(*shape: int) -> set[tuple[object, object]]:
        found = backends.candidates(_permuted(shape, (1, 0)), near)
        return {(c.get("rows"), c.get("columns")) for c in found if c.get("columns")}

    assert blocks(2048, 512) == {(128, 64), (64, 128)}
    assert blocks(100, 20000) == {(64, 128)}, "the others are larger than the matrix"
    assert not blocks(256, 256), "it stays in L2"


def test_rows_that_share_the_sets_of_l1_are_written_eight_at_a_time_first(device: CPUModel) -> None:
    def first(*shape: int) -> Candidate:
        best, *_ = (c for c in backends.candidates(_permuted(shape, (1, 0)), device) if c.family == "transpose")
        return best

    assert first(2048, 512).get("columns")
    assert not first(2050, 510).get("columns")


def test_half_tiles_are_turned_by_single_instructions() -> None:
    """Two loads and three shuffles a vector, in as many tiles as LLVM unrolls; nothing is kept on the stack."""
    if platform.machine() != "x86_64":
        pytest.skip("x86's instructions")
    device = CPU("skylake-avx512", threads=2)
    kernel = backends.schedule(_permuted((512, 256), (1, 0)), Candidate.make("transpose", rows=64, columns=64), device)
    assert isinstance(kernel, Kernel)
    func = kernel.func.with_attr("global_symbol", "main")
    text = str(tvm.compile(func, target=device.target(), tir_pipeline=PIPELINE).mod.inspect_source("asm"))
    halves = len(re.findall(r"vinsertf\w+\s+\$1, .*\(.*\), %zmm", text))
    assert halves
    assert halves % 8 == 0
    assert len(re.findall(r"v(?:unpck[lh]p[sd]|shuff\w+|perm\w+)\s.*%zmm", text)) == 3 * halves
    assert not re.search(r"%zmm\d+, .*\(%rsp", text)


def test_transposes_of_what_comes_from_memory_are_in_blocks(device: CPUModel) -> None:
    workload = _permuted((256, 256), (1, 0))
    assert not any(c.get("rows") for c in backends.candidates(workload, device))
    assert any(c.get("rows") for c in backends.candidates(workload, replace(device, l3_bytes=1 << 16)))


def test_turned_tiles_use_shuffles_only(device: CPUModel) -> None:
    """Whole vectors are loaded and stored: no gather, no element by itself."""
    workload = _permuted((64, 48), (1, 0))
    kernel = backends.schedule(workload, Candidate.make("transpose", inner="a"), device)
    assert isinstance(kernel, Kernel)
    script = kernel.func.script()
    lanes = device.lanes()
    assert script.count("T.Shuffle(") == lanes * (lanes.bit_length() - 1)
    assert "vectorized" not in script


@pytest.mark.parametrize(
    ("workload", "candidate", "reason"),
    [
        (lambda: conv(7, 32, 64, 3, groups=4), Candidate.make("contraction", mr=7, nr=32, mt=1, order="m"), "group"),
        (lambda: conv(8, 16, 32, 3), Candidate.make("grouped", ht=1, mr=4, cb=16), "not a grouped convolution"),
        (lambda: conv(8, 32, 32, 3, groups=8), Candidate.make("grouped", ht=3, mr=4, cb=16), "does not divide"),
        (lambda: softmax(8, 64), Candidate.make("columns", cb=16), "is reduced"),
        (lambda: _group_norm(8, 2, 6, 5, 80), Candidate.make("columns", cb=16), "groups of 10"),
        (lambda: _softmax(1, 1, 21, 6, 32), Candidate.make("rowwise", unroll=1), "outermost"),
        (lambda: _permuted((4, 6, 20), (1, 0, 2)), Candidate.make("transpose", inner="a"), "transposed"),
        (lambda: _permuted((3, 3), (1, 0)), Candidate.make("transpose", inner="a"), "shorter than a vector"),
        (lambda: _permuted((50, 70), (1, 0)), Candidate.make("transpose", rows=64, columns=64), "no block of 64 x 64"),
        (lambda: global_pool(7, 48), Candidate.make("pieces", rows=4), "no whole pieces"),
        (lambda: softmax(64, 64), Candidate.make("pieces", rows=4), "is reduced"),
        (lambda: _instance_norm(1, 5, 7, 48), Candidate.make("moments", rows=4), "no whole pieces"),
        (lambda: _softmax(1, 1, 64, 2, 32), Candidate.make("moments", rows=4), "two sums"),
        (lambda: global_pool(8, 48), Candidate.make("moments", rows=4), "two large reductions"),
    ],
)
def test_what_does_not_apply_says_why(
    workload: Callable[[], Workload], candidate: Candidate, reason: str, device: CPUModel
) -> None:
    refused = backends.schedule(workload(), candidate, device)
    assert isinstance(refused, NotApplicable), refused
    assert reason in refused.reason
