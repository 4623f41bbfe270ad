"""Op level against subgraph level on quantised models: the op alone stores its sums, the subgraph stores bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from subtune import backends, models
from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.kernel import Kernel
from subtune.core.measurement import Timing
from subtune.core.workload import Workload
from subtune.measure import LocalMeasurer, ReplayMeasurer
from subtune.measure.replay import ReplaySession
from subtune.pipeline import prepare
from subtune.report.comparison import OP, SUBGRAPH, ComparisonReport
from subtune.tuning import compare
from subtune.tuning.compare import compare_model
from subtune.tuning.op_level import anchor_alone
from subtune.tuning.ranking import ENOUGH, kendall_tau
from subtune.tuning.roofline import position
from tests.passes.test_integer_products import residual
from tests.tuning.test_ranking import ByWorkload

PRODUCTS = ("nn.conv2d", "matmul")


def stored(workload: Workload) -> list[str]:
    return [arg.dtype for arg in workload.args if arg.is_output]


def read(workload: Workload) -> list[str]:
    return [arg.dtype for arg in workload.args if not arg.is_output and not arg.is_constant]


def units(model: Any, **options: Any) -> list[tuple[Workload, Workload]]:
    """Of each product of bytes, the op alone and its subgraph."""
    found = []
    for subgraph in prepare(model, **options).subgraphs:
        if subgraph.anchor in PRODUCTS:
            op = anchor_alone(subgraph.workload)
            assert isinstance(op, Workload), op.reason
            found.append((op, subgraph.workload))
    return found


def test_the_op_alone_stores_sums() -> None:
    found = units(residual())
    assert len(found) == 3
    for op, subgraph in found:
        assert stored(op) == ["int32"]
        assert stored(subgraph) == ["uint8"]
        assert read(op) == ["uint8"], "what is added in the epilogue is not the op's"
        assert op.nbytes - 4 * subgraph.args[-1].nbytes == sum(arg.nbytes for arg in op.args[:2])


def quantised_resnet(folder: Path) -> Path:
    """The zoo's small ResNet-18 as ONNX Runtime quantises it: QDQ, uint8 activations, int8 weights per channel."""
    pytest.importorskip("onnxruntime")
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(CalibrationDataReader):
        def __init__(self) -> None:
            shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
            self._left = [{info.name: np.random.default_rng(0).standard_normal(shape, np.float32)}]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self._left.pop() if self._left else None

    model = models.reduced("resnet18")
    info = model.graph.input[0]
    plain, prepared, path = (folder / f"{name}.onnx" for name in ("plain", "prepared", "quantised"))
    onnx.save(model, plain)
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared, path, Samples(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, per_channel=True,
    )  # fmt: skip
    return path


def test_a_model_of_onnx_runtimes_quantiser(tmp_path: Path) -> None:
    """All but the last, whose result is the model's: it is dequantised."""
    found = units(quantised_resnet(tmp_path))
    assert len(found) >= 19
    assert {tuple(stored(op)) for op, _ in found} == {("int32",)}
    assert [stored(subgraph) for _, subgraph in found] == [["uint8"]] * (len(found) - 1) + [["float32"]]
    device = backends.device_of(threads=2)
    for op, subgraph in found[:-1]:
        assert position(subgraph, device).intensity > position(op, device).intensity


@pytest.mark.parametrize("target", ["icelake-server", "sm_90a"])
def test_both_units_take_the_same_candidates(target: str) -> None:
    """On a processor and on a GPU: what is ranked is not empty."""
    device = backends.device_of(target, is_measured=False)
    forms = replace(device.backend.forms(device.model), byte_row=1)  # so few channels would be computed in halves
    for pair in units(residual(), forms=forms):
        proposed = dict.fromkeys(c for unit in pair for c in backends.candidates(unit, device, 4))
        kernels = {c: [backends.schedule(unit, c, device) for unit in pair] for c in proposed}
        assert sum(all(isinstance(one, Kernel) for one in of) for of in kernels.values()) >= ENOUGH


def replayed(
    seconds: Sequence[tuple[float, float]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ComparisonReport, list[Candidate]]:
    """The report of the first product, whose candidates take these seconds alone and in the subgraph; and they."""
    # with tile registers there are fewer candidates of different tiles than have an order
    monkeypatch.setattr(CPUModel, "has_byte_tiles", False)
    device = backends.device_of(threads=2)
    forms = device.backend.forms(device.model)
    op, subgraph = units(residual(), forms=forms)[0]
    proposed = list(dict.fromkeys(c for unit in (op, subgraph) for c in backends.candidates(unit, device, 8)))
    tables = [dict(zip(proposed, column, strict=False)) for column in zip(*seconds, strict=True)]
    monkeypatch.setattr(compare, "_end_to_end", lambda *_: (2.0, 1.0))
    measurer = ByWorkload({unit.key: table for unit, table in zip((op, subgraph), tables, strict=True)})
    report = compare_model(residual(), threads=2, topk=8, database=folder / "t.db", measurer=measurer)
    row = next(row for row in report.rows if row.placed.position == position(subgraph, device))
    return replace(report, rows=(row,)), proposed


def test_the_documents_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apache/tvm#10650: alone, schedule B takes 237 us and A 329; in the subgraph B takes 224 and A 104."""
    others = [(400e-6, 300e-6), (500e-6, 200e-6)]
    report, (a, b, *_) = replayed([(329e-6, 104e-6), (237e-6, 224e-6), *others], tmp_path, monkeypatch)
    (row,) = report.rows
    assert (row.op_winner, row.subgraph_winner) == (str(b), str(a))
    assert (row.op_s, row.subgraph_s) == (pytest.approx(224e-6), pytest.approx(104e-6))
    assert row.faster == SUBGRAPH
    assert row.lost_s == pytest.approx(120e-6)
    assert row.ranking.tau == kendall_tau([329, 237, 400, 500], [104, 224, 300, 200])
    assert (row.ranking.searched, row.ranking.searched_tau) == (4, row.ranking.tau)
    assert row.op_placed.seconds == pytest.approx(237e-6)
    assert row.placed.seconds == pytest.approx(104e-6)
    assert "tuning at op level loses 120.0 us of the 104.0 us" in str(report)


@pytest.mark.parametrize(("ratios", "faster"), [
    ([1.2, 1.1, 1.3], SUBGRAPH), ([0.8, 0.9, 0.7], OP), ([1.2, 1.1, 0.9], ""), ([0.8, 1.1, 0.9], ""),
    ([1.004, 1.005, 1.2], ""), ([0.999, 0.995, 0.8], ""), ([1.0], ""), ([], ""),
])  # fmt: skip
def test_faster_is_in_every_round_and_by_more_than_a_little(ratios: list[float], faster: str) -> None:
    assert compare._faster(ratios) == faster


def test_a_machine_that_slows_down_does_not_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A takes twice the time of B in every round but the one in which the machine slows down between the two."""
    slow = iter([1, 1, 1, 1, 1, 1, 8, 1, 8, 8, 8, 8, 8, 8])
    a, b = Candidate.make("t", i=1), Candidate.make("t", i=2)
    seconds = {a: 2e-6, b: 1e-6}
    monkeypatch.setattr(ReplaySession, "time", lambda _, one, *__: Timing(seconds[one] * next(slow), 0.0, 0.0, 3))
    op, subgraph = units(residual())[0]
    records = [SimpleNamespace(candidate=one, timing=Timing(1.0, 1.0, 0.0, 3)) for one in (a, b)]
    on = (backends.device_of(threads=2), ReplayMeasurer({DEFAULT: 1.0, a: 1.0, b: 1.0}))
    row = compare._compared(SimpleNamespace(name="s", workload=subgraph, uses=3), op, *records, on)
    assert (row.op_s, row.subgraph_s) == (pytest.approx(2e-6), pytest.approx(1e-6))
    assert row.faster == SUBGRAPH
    assert row.lost_s == pytest.approx(3e-6)


@pytest.fixture(scope="module")
def report(workers: LocalMeasurer, tmp_path_factory: pytest.TempPathFactory) -> ComparisonReport:
    folder = tmp_path_factory.mktemp("quantised")
    path = folder / "residual.onnx"
    onnx.save(residual(), path)
    return compare_model(str(path), topk=4, threads=2, database=folder / "t.db", measurer=workers)


@pytest.mark.slow
def test_every_product_is_compared_and_ranked(report: ComparisonReport) -> None:
    assert len(report.rows) == 3
    assert report.left_out == ()
    device = backends.device_of(threads=2)
    for row, (op, subgraph) in zip(report.rows, units(residual()), strict=True):
        assert row.op_s > 0
        assert row.subgraph_s > 0
        assert row.op_placed.position == position(op, device)
        assert row.placed.position == position(subgraph, device)
        assert row.op_placed.seconds > 0
        assert row.placed.seconds > 0
        if row.ranking.tau is None:  # all of them may take the same time, or fail
            assert row.ranking.why
            continue
        assert -1 <= row.ranking.tau <= 1
        assert len(row.ranking.points) >= ENOUGH
        assert {row.op_winner, row.subgraph_winner} <= {point.candidate for point in row.ranking.points}
    assert any(row.ranking.points for row in report.rows)


@pytest.mark.slow
def test_what_has_no_op_is_listed(report: ComparisonReport) -> None:
    assert {one.why for one in report.without_op} == {
        "no epilogue: the op is the subgraph", "0 reductions: no single anchor op",
    }  # fmt: skip


@pytest.mark.slow
def test_its_json_says_what_it_is_of(report: ComparisonReport) -> None:
    data = json.loads(report.to_json())
    assert data["model"] == "residual"
    assert data["device"] == backends.device_of(threads=2).fingerprint()
    assert data["summary"]["bytes_ratio"] < 1


@pytest.mark.slow
def test_its_page(report: ComparisonReport) -> None:
    pytest.importorskip("matplotlib")
    from subtune.report.comparison_page import page

    text = page(report)
    assert text.count("<svg") >= 2, "rankings and the roofline"
    assert "http" not in text
