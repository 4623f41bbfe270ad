"""The GPU suites without a GPU: the documents' rows, what they compute, verdicts and tables; granularity on a CPU."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tvm

from subtune.backends import as_device, candidates
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.driver import driver_device
from subtune.bench import peers_cuda
from subtune.bench.gpu_op import GpuOp
from subtune.bench.gpu_rows import FASTDLIGHT, GPU_OPS, TENSORCORE, GpuCase, Published
from subtune.bench.gpu_table import gpu_json, gpu_table
from subtune.bench.quality import Quality, WorkloadQuality, summarize
from subtune.bench.race import Pace
from subtune.bench.suite import Settings
from subtune.bench.suite_gpu import GpuReport, GpuRow, _loaded, _operator
from subtune.bench.suite_levels import LevelCase, levels_json, levels_table, run_levels
from subtune.cli import main
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Built, Failure, FailureKind, Timing
from subtune.database import Database

H200 = CUDA("H200")
NO_QUALITY = Quality(0, 0, 0.0, 0.0, (0.0,) * 3, (0.0,) * 3)


def run(op: GpuOp, *arrays: np.ndarray) -> np.ndarray:
    """The unscheduled workload on this processor."""
    workload = op.workload()
    kernel = tvm.compile(workload.func, target="llvm")
    out = workload.args[-1]
    tensors = [tvm.runtime.tensor(array) for array in (*arrays, np.zeros(out.shape, out.dtype))]
    kernel(*tensors)
    return tensors[-1].numpy()


def test_every_row_of_the_documents_is_there_with_its_figures() -> None:
    rows = {case.name: case for case in FASTDLIGHT}
    assert len(rows) == 27
    worst = rows["matmul_nt-1024-float32"].published
    assert worst is not None
    assert worst.speedup == pytest.approx(0.992248062)
    total = rows["reduce_sum-16384-1024"].published
    assert total is not None
    assert (total.best_s, total.first_s, total.tune_s) == pytest.approx((21e-6, 24e-6, 1.386))
    assert total.speedup == pytest.approx(36.42857143)
    models = [case for case in FASTDLIGHT if case.op is None]
    assert {(case.model, case.precision) for case in models} == {
        (f"zoo:{name}?batch=128", precision) for name in ("mlp", "resnet18") for precision in ("fp32", "fp16")
    }
    for n, speedup in ((64, 1.025), (32, 1.58), (16, 2.04)):
        (case,) = [case for case in TENSORCORE if case.name == f"nmt-512-{n}-512-int8-nt"]
        assert case.published is not None
        assert case.published.speedup == pytest.approx(speedup, abs=0.01)


OPERATORS = [case for case in (*FASTDLIGHT, *TENSORCORE, *GPU_OPS) if case.op]


@pytest.mark.parametrize("case", OPERATORS, ids=lambda case: case.name)
@pytest.mark.grid
def test_every_operator_has_candidates(case: GpuCase) -> None:
    assert case.op is not None
    assert GpuOp.from_json(case.op.to_json()) == case.op
    workload = case.op.workload()
    found = candidates(workload, case.on(as_device(H200)), 20)
    assert len(found) >= 10
    assert all(0 < candidate.predicted_s < 1 for candidate in found)
    assert workload.args[-1].dtype == case.op.out_dtype


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
def test_products_of_all_layouts(layout: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (5, 7), np.int8), rng.integers(-9, 9, (7, 6), np.int8)
    given = (a if layout[0] == "n" else a.T, b if layout[1] == "n" else b.T)
    op = GpuOp("product", (5, 6, 7), "int8", layout=layout)
    assert (run(op, *map(np.ascontiguousarray, given)) == a.astype("int32") @ b.astype("int32")).all()


def test_epilogues() -> None:
    rng = np.random.default_rng(0)
    a, b, r = (rng.standard_normal(shape).astype("float32") for shape in ((4, 9), (7, 9), (4, 7)))
    bias = rng.standard_normal(7).astype("float32")
    op = GpuOp("product", (4, 7, 9), "float32", epilogue="bias+residual+relu")
    assert run(op, a, b, bias, r) == pytest.approx(np.maximum(a @ b.T + bias + r, 0), abs=1e-5)
    x, w = rng.integers(-90, 90, (4, 8), np.int8), rng.integers(-90, 90, (6, 8), np.int8)
    sums = x.astype("int32") @ w.T.astype("int32") + 7
    found = run(GpuOp("product", (4, 6, 8), "int8", "int8", epilogue="bias+requantise"), x, w, np.full(6, 7, "int32"))
    assert (found == np.clip(np.round(sums.astype("float32") * np.float32(0.01)), -128, 127).astype("int8")).all()


def test_convolutions_stride_and_pad() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (2, 5, 5, 4), np.int8), rng.integers(-9, 9, (3, 3, 3, 4), np.int8)
    padded = np.pad(x.astype("int32"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    found = run(GpuOp("conv", (2, 5, 4, 3, 3, 2, 1), "int8"), x, w)
    assert (found == np.einsum("nyxchw,ohwc->nyxo", windows, w.astype("int32"))).all()


def test_two_weights_in_a_byte() -> None:
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 128, (3, 4), np.int8)
    weights = np.stack([packed & 15, (packed >> 4) & 15], -1).reshape(3, 8)
    vector = rng.integers(-4, 4, (1, 8)).astype("float32")
    # in float32: LLVM's vectors of halves do not verify in this TVM
    assert (run(GpuOp("gemv_i4", (3, 8), "float32"), vector, packed) == (vector @ weights.T)).all()


def row(name: str, best: float, default: float, library: float, **more: object) -> GpuRow:
    published = Published("A100", "dlight", 2e-6, 1e-6)
    return GpuRow(name, published, 1.0, best_s=best, default_s=default, library_s=library, first_s=best * 1.1, **more)  # type: ignore[arg-type]


def test_verdicts_and_reports() -> None:
    good, slow, behind = (
        row("good", 1e-6, 2.5e-6, 1e-6),
        row("slow", 1e-6, 1.9e-6, 3e-6),
        row("behind", 2e-6, 9e-6, 1e-6),
    )
    failed = GpuRow("failed", None, 1.0, failure="CudaError: gone")
    assert [r.verdict for r in (good, slow, behind, failed)] == ["yes", "no", "no", "-"]
    quality = WorkloadQuality("k", 20, 0.5, (0.1, 0.05, 0.0))
    timed = row("ours", 3e-6, 9e-6, 0.0, quality=(quality,), note="torch-op: PyTorch has none")
    report = GpuReport("fastdlight", "cuda/sm_90a/h200/132sm", (good, failed, timed), summarize([quality]))
    text = gpu_table(report)
    assert report.first_within == 1.0
    assert "failed: CudaError: gone" in text
    assert "ours: torch-op: PyTorch has none" in text
    assert "2 of 2 rows meet" in text
    assert [r["verdict"] for r in json.loads(gpu_json(report))["rows"]] == ["yes", "-", "yes"]


class FakeSession:
    """Candidates take what they are predicted to take; the first does not build, dlight's takes a millisecond."""

    def build(self, wanted: list[Candidate], deadline: float) -> dict[Candidate, Built | Failure]:
        self.broken = next(c for c in wanted if c != DEFAULT)
        return {c: Failure(FailureKind.BUILD, "no") if c == self.broken else Built(0.1, "h") for c in wanted}

    def time(self, candidate: Candidate, seconds: float, stop_above_s: float) -> Timing:
        assert candidate != self.broken
        took = candidate.predicted_s or 1e-3
        return Timing(took, took, 0.0, 3)


class FakeMeasurer:
    def session(self, workload: object, device: object) -> FakeMeasurer:
        return self

    def __enter__(self) -> FakeSession:
        return FakeSession()

    def __exit__(self, *_: object) -> None: ...


def test_an_operator_is_tuned_timed_and_recorded(tmp_path) -> None:
    op = GpuOp("product", (64, 64, 64))
    with Database(tmp_path / "t.db") as database:
        settings = Settings(database, ("none",), (("topk", 8),), Pace(2, 0.001))
        found = _operator(GpuCase("one", op), op, settings, as_device(H200), FakeMeasurer())  # type: ignore[arg-type]
        kept = database.measurements(op.workload().key, as_device(H200).scope())
    proposals = candidates(op.workload(), H200, 8)
    assert found.first == str(proposals[1]), "the first that builds"
    assert found.best_s == found.first_s == pytest.approx(proposals[1].predicted_s)
    assert found.default_s == pytest.approx(1e-3)
    assert (found.tried, found.failed, len(kept)) == (8, 1, 8)
    assert found.quality[0].spearman == pytest.approx(1)
    assert _loaded(None) == (None, "")


@pytest.mark.skipif(not isinstance(driver_device(), str), reason="there is a GPU")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--suite", "fastdlight"], "GPU"), (["--suite", "tensorcore", "--target", "x86-64"], "is for cuda")],
)
def test_without_a_gpu_the_suites_say_so(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) != 0
    assert reason in capsys.readouterr().err


def test_granularity_on_a_processor(tmp_path) -> None:
    cases = (
        LevelCase("requantised", GpuOp("product", (16, 32, 16), "int8", "int8", epilogue="requantise")),
        LevelCase("alone", GpuOp("product", (16, 16, 16), "float32")),
    )
    with Database(tmp_path / "t.db") as database:
        settings = Settings(database, (), (("target", "auto"), ("threads", 1), ("topk", 2)), Pace(1, 0.001))
        report = run_levels(cases, settings)
    first, second = report.rows
    assert first.compared is not None, first.failure
    assert first.compared.subgraph_s > 0
    assert "cannot be tuned alone" in second.failure
    assert "requantised" in levels_table(report)
    assert json.loads(levels_json(report))["rows"][0]["gain"] == pytest.approx(first.gain)


@pytest.mark.parametrize("symbols", [(), (3,)])
def test_an_artifact_is_timed_at_the_shape_of_its_inputs(symbols, monkeypatch):
    """A program of many shapes is told which one; one of fixed shapes takes none."""
    calls = []

    class Program:
        def replay(self, *at):
            calls.append(at)

        def device_seconds(self, *at, runs):
            calls.append(at)
            return 0.5

    loaded = SimpleNamespace(
        manifest=SimpleNamespace(domain=SimpleNamespace(symbols=symbols)),
        run=lambda inputs: {"y": inputs["x"]},
        symbols_at=lambda inputs: inputs["x"].shape,
        program=Program(),
    )
    monkeypatch.setattr("subtune.artifact.load", lambda path: loaded)
    x = np.ones(3, np.float32)
    peer = peers_cuda.artifact(SimpleNamespace(path="m.subtune"), {"x": x})
    peer.call()
    assert peer.outputs(None)[0] is x
    assert peer.seconds is not None
    assert peer.seconds(2) == [0.5, 0.5]
    assert set(calls) == {(symbols,) if symbols else ()}
