"""The suites on small cases: what is compiled, raced, compared and written down. Nothing about how fast it is."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import tvm_ffi

from subtune import runtime
from subtune.backends.cpu import limits
from subtune.backends.cpu.device import CPU
from subtune.bench import suite_cpu
from subtune.bench.job import BenchError
from subtune.bench.op_case import OpCase
from subtune.bench.ops_compute import COMPUTE, conv, dense, matmul_exp_matmul
from subtune.bench.ops_memory import MEMORY
from subtune.bench.ops_table import ops_json, ops_table
from subtune.bench.quality import WorkloadQuality, of_measurements, of_workloads, summarize
from subtune.bench.race import Pace
from subtune.bench.suite import Settings, chosen
from subtune.bench.suite_cpu import ModelCase, run_cpu
from subtune.bench.suite_ops import run_ops
from subtune.bench.table import cpu_json, cpu_table
from subtune.cli import main
from subtune.core.candidate import Candidate
from subtune.core.measurement import Failure, FailureKind, Measurement, Timing
from subtune.database import Database

MLP = "zoo:mlp?image=8&batch=4&hidden=32"


@pytest.fixture
def settings(tmp_path):
    with Database(tmp_path / "tuning.db") as database:
        yield Settings(
            database,
            ("onnxruntime", "torch-compile"),
            (("threads", 1), ("topk", 3)),
            Pace(2, 0.002),
        )


def measured(predicted: float, seconds: float | None) -> Measurement:
    candidate = Candidate.make("contraction", predicted, mr=int(predicted * 1000))
    outcome = Timing(seconds, seconds, 0.0, 3) if seconds else Failure(FailureKind.BUILD, "no")
    return Measurement(candidate, outcome)


class TestQuality:
    def test_perfect_and_reversed(self):
        forward = of_measurements("k", [measured(p, p) for p in (3.0, 1.0, 2.0)])
        backward = of_measurements("k", [measured(p, 6 - p) for p in (3.0, 1.0, 2.0)])
        assert forward is not None
        assert backward is not None
        assert (forward.spearman, forward.regret) == (pytest.approx(1), (0, 0, 0))
        assert backward.spearman == pytest.approx(-1)
        assert backward.regret == (pytest.approx(5 / 3 - 1), 0, 0)

    def test_equal_values_share_a_rank(self):
        one = of_measurements("k", [measured(1.0, 1), measured(2.0, 2), measured(3.0, 2), measured(4.0, 4)])
        assert one is not None
        assert one.spearman == pytest.approx(0.9487, abs=1e-4)  # ranks 1 2 3 4 and 1 2.5 2.5 4

    def test_a_failure_takes_a_place_among_the_first(self):
        one = of_measurements("k", [measured(0.5, None), measured(1.0, 2), measured(2.0, 1), measured(3.0, 4)])
        assert one is not None
        assert one.timed == 3
        assert one.regret == (3.0, 0, 0)  # nothing is known of the first: the worst is assumed

    def test_too_few_say_nothing(self):
        assert of_measurements("k", [measured(1.0, 1), measured(2.0, 2), measured(3.0, None)]) is None
        assert of_measurements("k", [measured(0.0, s) for s in (1, 2, 3)]) is None
        assert summarize([]).workloads == 0
        assert "no workload" in str(summarize([]))

    def test_a_workload_of_two_models_counts_once(self):
        one, other = (WorkloadQuality(key, 5, s, (0.1, 0.0, 0.0)) for key, s in (("a", 0.5), ("b", 1.0)))
        found = summarize([one, other, one])
        assert (found.workloads, found.candidates, found.spearman_mean) == (2, 10, 0.75)


class TestModels:
    def test_a_row_holds_all_of_it(self, settings):
        pytest.importorskip("onnxruntime")
        kept = []
        report = run_cpu([ModelCase("mlp", MLP, bar=1e-9)], settings, kept.append)
        (row,) = report.rows
        assert row.failure == ""
        assert row.report is not None
        assert row.best
        assert row.verdict == "yes"
        assert row.tried > 0
        assert row.tune_s > 0
        peers = {one.framework: one for one in row.report.rows}
        assert {"subtune", "onnxruntime"} <= set(peers)
        assert peers["onnxruntime"].max_rel < 1e-4
        assert peers["subtune"].peak_rss_bytes > 10e6
        missing = dict(row.report.failures)
        assert ("torch-compile" in peers) != ("torch-compile" in missing)
        assert kept[-1].rows == report.rows
        text = cpu_table(report)
        assert "mlp" in text
        assert "model against measurement" in text
        if missing:
            assert f"mlp: torch-compile not available: {missing['torch-compile']}" in text
        data = json.loads(cpu_json(report))
        assert data["rows"][0]["report"]["rows"][0]["framework"] == "subtune"
        assert data["rows"][0]["verdict"] == "yes"
        keys = [w.key for w in row.quality]
        other = SimpleNamespace(device="another device", kind="cpu")
        assert of_workloads(settings.database, keys, other) == ()  # type: ignore[arg-type]

    def test_one_that_cannot_be_compiled_is_a_row(self, settings):
        report = run_cpu([ModelCase("none", "zoo:nosuch", bar=2.0)], settings)
        (row,) = report.rows
        assert "nosuch" in row.failure
        assert row.verdict == "-"
        assert "none: not compiled" in cpu_table(report)

    def test_ctrl_c_keeps_what_is_done(self, settings, monkeypatch):
        def interrupted(case, settings):
            if case.name == "second":
                raise KeyboardInterrupt
            return suite_cpu.ModelRow(case.name, failure="skipped")

        monkeypatch.setattr(suite_cpu, "_run", interrupted)
        report = run_cpu([ModelCase(name, "") for name in ("first", "second", "third")], settings)
        assert [row.name for row in report.rows] == ["first"]
        assert report.is_interrupted
        assert "interrupted" in cpu_table(report)

    def test_bars_by_mode(self):
        case = suite_cpu.MODELS[0]
        assert [suite_cpu._bar(case, mode) for mode in ("f32", "exact", "bf16")] == [1.5, 1.0, 1.1]

    def test_cases_by_name(self):
        names = [case.name for case in chosen(suite_cpu.MODELS, ["resnet*", "mlp"], "cpu")]
        assert names == ["resnet18", "resnet18-b8", "resnet50", "mlp"]
        with pytest.raises(BenchError, match="suite cpu has no 'alexnet'; it has resnet18"):
            chosen(suite_cpu.MODELS, ["alexnet"], "cpu")


class TestOperators:
    def test_a_product_an_image_and_a_copy(self, settings):
        """Outputs agree although the peers get the image in another layout."""
        pytest.importorskip("onnxruntime")
        pool = next(case for case in MEMORY if case.name == "max-pool-2-s2-L2")
        small = OpCase(pool.name, pool.body, ((1, 8, 12, 10),), is_image=True)
        quick = Settings(settings.database, ("onnxruntime", "numpy"), settings.options, settings.pace)
        report = run_ops([dense(8, 16, 32), conv(6, 4, 8, 3), small], quick)
        assert [(row.failure, row.limit) for row in report.rows] == [("", "fma"), ("", "fma"), ("", "copy")]
        for row in report.rows:
            assert row.race is not None
            assert row.race.failures == ()
            assert all(one.max_rel < 1e-4 for one in row.race.rows)
            assert row.share > 0
            assert row.winners
        assert report.rows[2].race.row("copy-cold").median_s > 0
        assert report.rows[0].race.row("numpy") is not None
        assert report.rows[1].race.row("numpy") is None
        # ONNX Runtime's own account of the convolution, where its layout changes are left out
        assert report.rows[0].race.row("onnxruntime-ops") is None
        account = report.rows[1].race.row("onnxruntime-ops")
        assert account is not None
        assert account.samples >= 3
        assert report.rows[1].op_ratio == pytest.approx(account.median_s / report.rows[1].kernel_s)
        assert report.peak_flops > 0
        assert json.loads(ops_json(report))["suite"] == "cpu-ops"
        assert "dense-8x16x32" in ops_table(report)

    def test_a_rival_of_its_own(self, settings):
        """Inputs that keep exp finite, and numpy as the only one to be ahead of."""
        quick = Settings(settings.database, ("numpy",), (("threads", 1), ("topk", 1)), settings.pace)
        (row,) = run_ops([matmul_exp_matmul(16, 2048, 8, 4)], quick).rows
        assert row.failure == ""
        assert row.best == "numpy"
        assert row.verdict == ("yes" if row.ratio >= 1.1 else "no")

    def test_exp_of_products_stays_finite(self):
        case = matmul_exp_matmul(16, 2048, 8, 4)
        a, b, e = case.arrays(nhwc=False)
        assert np.isfinite(np.exp(a @ b) @ e).all()
        assert np.abs(a).max() <= case.scale

    def test_names_are_unique_and_there_are_enough(self):
        names = [case.name for case in (*COMPUTE, *MEMORY)]
        assert len(set(names)) == len(names)
        assert len(COMPUTE) >= 18 + 20

    @pytest.mark.parametrize("case", [c for c in (*COMPUTE, *MEMORY) if c.name.endswith("-L2") or 0 < c.flops < 5e7])
    def test_models_are_valid(self, case):
        for nhwc in (False, True):
            model = case.model(nhwc)
            onnx.checker.check_model(model, full_check=True)
            shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input]
            assert shapes == [list(array.shape) for array in case.arrays(nhwc)]


class TestLimits:
    def test_both_copies_copy_everything(self, tmp_path):
        device = CPU("auto", threads=2)
        path = tmp_path / "copy.so"
        nbytes = limits.build_copy(path, device, 100_000)
        shape = json.loads((tmp_path / "copy.json").read_text())["shapes"][0]
        assert nbytes == 8 * np.prod(shape)
        source = runtime.aligned_empty(nbytes // 2).view("float32").reshape(shape)
        source[...] = np.arange(source.size).reshape(shape)
        runtime.load_runtime()
        for name in ("vectors", "library"):
            out = runtime.aligned_empty(nbytes // 2).view("float32").reshape(shape)
            out[...] = -1
            tvm_ffi.load_module(str(path))[name](tvm_ffi.from_dlpack(source), tvm_ffi.from_dlpack(out))
            np.testing.assert_array_equal(out, source)

    def test_a_cold_copy_takes_other_arrays_in_every_call(self, tmp_path, monkeypatch):
        device = CPU("auto", threads=2)
        path = tmp_path / "copy.so"
        nbytes = limits.build_copy(path, device, 400_000)
        made = []
        allocate = runtime.aligned_empty
        monkeypatch.setattr(runtime, "aligned_empty", lambda n: made.append(n) or allocate(n))
        for is_cold in (False, True):
            limits.load_kernel(str(path), 2, is_cold)()
            assert (sum(made) >= 2 * device.l2_bytes * device.threads) == is_cold
            made.clear()
        assert nbytes < device.l2_bytes

    def test_kernels_are_loaded_with_their_arrays(self, tmp_path):
        device = CPU("auto", threads=1)
        limits.build_fma(tmp_path / "fma.so", device)
        limits.load_kernel(str(tmp_path / "fma.so"), 1)()
        assert limits.fma_flops(device) > 0


class TestCommandLine:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--suite", "gpu"], "gpu"),
            (["--suite", "cpu", "--models", "alexnet"], "suite cpu has no 'alexnet'"),
            (["--suite", "cpu-ops", "--ops", "fft"], "suite cpu-ops has no 'fft'; it has dense-*, matmul-*"),
            (["--suite", "cpu", "--against", "tensorflow"], "unknown framework tensorflow"),
            (["--suite", "cpu", "--json", "/nowhere/x.json"], "no such directory"),
            (["--suite", "cpu", "model.onnx"], "give an ARTIFACT"),
            ([], "give an ARTIFACT"),
        ],
    )
    def test_mistakes(self, arguments, message, capsys, tmp_path):
        try:
            code = main(["bench", *arguments, "--db", str(tmp_path / "t.db")])
        except SystemExit as e:  # argparse's own
            code = e.code
        assert code == 2
        err = capsys.readouterr().err
        assert message in err
        assert len(err.splitlines()) == 1

    def test_a_suite_into_a_file(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(suite_cpu, "MODELS", (ModelCase("mlp", MLP),))
        target = tmp_path / "out.json"
        options = ["--threads", "1", "--topk", "1", "--rounds", "1", "--round-time", "1ms", "--against", "none"]
        code = main(["bench", "--suite", "cpu", "--json", str(target), "--db", str(tmp_path / "t.db"), *options])
        assert code == 0
        assert json.loads(target.read_text())["rows"][0]["name"] == "mlp"
        assert "mlp" in capsys.readouterr().out
