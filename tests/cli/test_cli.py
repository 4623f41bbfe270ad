"""The command line: exit codes, one-line errors, and what each command asks of the rest."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import subtune
from subtune.artifact import manifest as manifests
from subtune.cli import main
from subtune.cli.arguments import duration
from subtune.cli.default_names import default_output
from subtune.cli.progressbar import describe
from subtune.core.errors import ModelError
from subtune.core.manifest import Source
from subtune.core.progress import Progress
from subtune.report.comparison import ComparisonReport

RUN = [sys.executable, "-c", "import sys; from subtune.cli import main; sys.exit(main())"]


class Report:
    """Stands in for the reports of compile and compare."""

    is_interrupted = False

    def __str__(self) -> str:
        return "all is well"

    def to_json(self) -> str:
        return '{"well": true}'


@pytest.fixture
def stand_in(monkeypatch):
    """`stand_in(module, name, result)` puts a function in `subtune.module` and returns the calls it gets."""

    def install(module: str, name: str, result: object) -> list:
        calls: list = []

        def function(*args: object, **kwargs: object) -> object:
            calls.append((args, kwargs))
            if isinstance(result, BaseException):
                raise result
            return result

        fake = types.ModuleType(f"subtune.{module}")
        setattr(fake, name, function)
        monkeypatch.setitem(sys.modules, f"subtune.{module}", fake)
        monkeypatch.setattr(subtune, module, fake, raising=False)
        return calls

    return install


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["compile", "--help"], ["db", "list", "--help"]])
def test_help_needs_nothing_heavy(arguments):
    code = (
        "import sys\nfrom subtune.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as e:\n    assert e.code == 0\n"
        "print([m for m in ('tvm', 'tvm_ffi', 'onnx', 'numpy', 'tqdm', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(capsys):
    with pytest.raises(SystemExit) as e:
        main(["--version"])
    assert e.value.code == 0
    assert capsys.readouterr().out == f"subtune {subtune.__version__}\n"


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("2m", 120), ("500ms", 0.5), ("1h", 3600), ("7", 7), ("1.5s", 1.5)]
)
def test_duration(text, seconds):
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "0s", "-1s", "3x", "nan", "infs"])
def test_not_a_duration(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration"):
        duration(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["compile"], "the following arguments are required: MODEL"),
        (["compile", "m.onnx", "--budget", "3x"], "'3x' is not a duration"),
        (["compile", "m.onnx", "--regret", "much"], "'much' is no share: write 5% or 0.05"),
        (["compile", "m.onnx", "--regret", "nan"], "'nan' is no share"),
        (["compile", "m.onnx", "--threads", "0"], "'0' is not a whole number above zero"),
        (["compile", "m.onnx", "--devices", "0,a"], "'0,a' are no numbers: write 0,1"),
        (["run", "a", "--input", "x"], "'x' is not of the form NAME=VALUE"),
    ],
)
def test_usage_errors_are_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as e:
        main(arguments)
    assert e.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("subtune: error: ")
    assert message in error
    assert error.count("\n") == 1


class TestCompile:
    def test_passes_every_option_on(self, stand_in, capsys, tmp_path):
        calls = stand_in("driver", "compile_model", Report())
        frontends = types.ModuleType("subtune.frontends")
        frontends.parse_shape_flag = lambda text: (text.split("=")[0], (1, 2))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "subtune.frontends", frontends)
            out = str(tmp_path / "o.subtune")
            options = "--shape x=1,2 --dynamic seq=1..4:w=.json --dynamic batch=1 "
            options += "--budget 2m --topk 5 --threads 1 --db f.db --device d.json --no-verify --exact "
            options += "--cache in-place --precision bf16 --weights-limit 1.5 --regret 5% --max-kernels 4 --trace"
            options += " --transfer"
            options += " --remote board:9090 --insecure --devices 0,1 --cluster ray://head:10001"
            assert main(["compile", "m.onnx", "-o", out, *options.split()]) == 0
        ((args, kwargs),) = calls
        assert args == ("m.onnx", out)
        progress = kwargs.pop("progress")
        assert progress is None  # stderr is no terminal here
        assert kwargs == {
            "params": None,
            "random_params": False,
            "inputs": None,
            "target": "auto",
            "shapes": {"x": (1, 2)},
            "dynamic": {"seq": "1..4:w=.json", "batch": "1"},
            "regret": 0.05,
            "max_kernels": 4,
            "cache": "in-place",
            "budget_s": 120.0,
            "topk": 5,
            "threads": 1,
            "database": "f.db",
            "device_file": "d.json",
            "devices": (0, 1),
            "remote": "board:9090",
            "insecure": True,
            "cluster": "ray://head:10001",
            "verify": False,
            "tune": True,
            "exact": True,
            "precision": "bf16",
            "weights_limit": 1.5,
            "transfer": True,
            "dump": None,
            "trace": True,
        }
        assert capsys.readouterr().out == "all is well\n"

    def test_json(self, stand_in, capsys, tmp_path):
        stand_in("driver", "compile_model", Report())
        assert main(["compile", "m.onnx", "-o", str(tmp_path / "o.subtune"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"well": True}

    def test_refuses_the_output_before_it_tunes(self, stand_in, capsys, tmp_path):
        calls = stand_in("driver", "compile_model", Report())
        (tmp_path / "o").write_text("mine")
        assert main(["compile", "m.onnx", "-o", str(tmp_path / "o")]) == 2
        assert "is in the way" in capsys.readouterr().err
        assert calls == []

    @pytest.mark.parametrize(
        ("model", "output"),
        [("zoo:bert?layers=2", "bert.subtune"), ("a/b.onnx", "b.subtune"), ("zoo:mlp", "mlp.subtune")],
    )
    def test_default_output(self, model, output):
        assert default_output(model) == output

    @pytest.mark.parametrize(
        ("failure", "code", "message"),
        [
            (ModelError("the file\nis broken"), 2, "subtune: error: the file is broken\n"),
            (KeyboardInterrupt(), 130, "subtune: interrupted\n"),
            (
                ZeroDivisionError("oh\nno"),
                1,
                "subtune: internal error: ZeroDivisionError: oh no; this is a bug, rerun with --debug\n",
            ),
        ],
    )
    def test_failures(self, stand_in, capsys, tmp_path, failure, code, message):
        stand_in("driver", "compile_model", failure)
        arguments = ["compile", "m.onnx", "-o", str(tmp_path / "o.subtune")]
        assert main(arguments) == code
        assert capsys.readouterr().err == message
        if code != 130:
            with pytest.raises(type(failure)):
                main([*arguments, "--debug"])

    def test_interrupted_compile_that_kept_its_work(self, stand_in, tmp_path):
        report = Report()
        report.is_interrupted = True
        stand_in("driver", "compile_model", report)
        assert main(["compile", "m.onnx", "-o", str(tmp_path / "o.subtune")]) == 130


class TestCompareAndInspect:
    def test_compare(self, stand_in, capsys):
        calls = stand_in("tuning.compare", "compare_model", Report())
        assert main(["compare", "m.onnx", "--topk", "3", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"well": True}
        assert calls[0][0] == ("m.onnx",)
        assert calls[0][1]["topk"] == 3

    def test_compare_writes_a_page(self, stand_in, capsys, tmp_path):
        pytest.importorskip("matplotlib")
        stand_in("tuning.compare", "compare_model", ComparisonReport((), (), 0.0, 0.0, model="net"))
        page = tmp_path / "page.html"
        assert main(["compare", "m.onnx", "--html", str(page)]) == 0
        assert capsys.readouterr().out.startswith("nothing to compare")
        assert page.read_text().startswith("<!DOCTYPE html>")

    def test_a_page_needs_matplotlib(self, stand_in, capsys, tmp_path, monkeypatch):
        calls = stand_in("tuning.compare", "compare_model", Report())
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        assert main(["compare", "m.onnx", "--html", str(tmp_path / "page.html")]) == 2
        message = "--html draws with matplotlib, which is not installed: pip install 'subtune[plots]'"
        assert capsys.readouterr().err == f"subtune: error: {message}\n"
        assert main(["compare", "m.onnx"]) == 0
        assert len(calls) == 1, "nothing was tuned for a page that cannot be drawn"

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("", "it is a directory; name a file"),
            ("absent/page.html", "the directory {folder}/absent does not exist"),
            ("file/page.html", "the directory {folder}/file does not exist"),
        ],
    )
    def test_where_no_page_can_be_written_nothing_is_tuned(self, stand_in, capsys, tmp_path, name, why):
        calls = stand_in("tuning.compare", "compare_model", Report())
        (tmp_path / "file").touch()
        path = str(tmp_path / name)
        assert main(["compare", "m.onnx", "--html", path]) == 2
        assert capsys.readouterr().err == f"subtune: error: cannot write {path}: {why.format(folder=tmp_path)}\n"
        assert calls == []

    def test_a_page_whose_name_has_a_zero_byte(self, stand_in, capsys):
        stand_in("tuning.compare", "compare_model", Report())
        assert main(["compare", "m.onnx", "--html", "a\0b"]) == 2
        assert "no name has a zero byte" in capsys.readouterr().err

    def test_inspect_of_an_artifact(self, small_artifact, capsys):
        assert main(["inspect", str(small_artifact)]) == 0
        text = capsys.readouterr().out
        assert text.startswith("small: (x: float32[4, 32]) -> (y: float32[4, 16], s: float32[4])")
        assert "activations 0.0 MiB in one arena" in text
        assert main(["inspect", str(small_artifact), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["memory"]["weights_nbytes"] == (32 * 16 + 16) * 4
        assert main(["inspect", str(small_artifact), "--svg", "x.svg"]) == 2

    def test_inspect_writes_text_json_and_pictures(self, small_model, capsys, tmp_path):
        dot, svg = tmp_path / "m.dot", tmp_path / "m.svg"
        assert main(["inspect", str(small_model), "--dot", str(dot), "--svg", str(svg)]) == 0
        assert "anchor" in capsys.readouterr().out
        assert dot.read_text().startswith("digraph")
        assert "<svg" in svg.read_text()
        assert main(["inspect", str(small_model), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)
        assert main(["inspect", str(small_model), "--dot", str(tmp_path / "none" / "m.dot")]) == 2
        assert "cannot write" in capsys.readouterr().err


class TestRun:
    def test_files_in_and_out(self, small_artifact, capsys, tmp_path, reference):
        x = np.random.default_rng(5).standard_normal((4, 32), dtype=np.float32)
        np.save(tmp_path / "x.npy", x)
        out = tmp_path / "out.npz"
        arguments = ["run", str(small_artifact), "--input", f"x={tmp_path / 'x.npy'}", "--output", str(out), "--check"]
        assert main(arguments) == 0
        with np.load(out) as outputs:
            np.testing.assert_allclose(outputs["y"], reference(x)["y"], rtol=1e-5, atol=1e-5)
        printed = capsys.readouterr()
        assert "y: float32[4, 16]" in printed.out
        assert printed.err == ""

    def test_random_inputs_are_announced(self, small_artifact, capsys):
        assert main(["run", str(small_artifact), "--json"]) == 0
        printed = capsys.readouterr()
        assert [row["name"] for row in json.loads(printed.out)["outputs"]] == ["y", "s"]
        assert "running on random arrays" in printed.err

    @pytest.mark.parametrize(
        ("content", "message"), [(None, "No such file"), (b"junk", "cannot read"), (b"", "cannot read")]
    )
    def test_unreadable_input(self, small_artifact, capsys, tmp_path, content, message):
        if content is not None:
            (tmp_path / "x.npy").write_bytes(content)
        assert main(["run", str(small_artifact), "--input", f"x={tmp_path / 'x.npy'}"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("subtune: error: ")
        assert message in error

    def test_no_artifact(self, capsys, tmp_path):
        assert main(["run", str(tmp_path / "none.subtune")]) == 2
        assert capsys.readouterr().err.startswith("subtune: error: there is no artifact at")


class TestBench:
    def test_artifact_against_its_model(self, small_artifact, capsys):
        pytest.importorskip("onnxruntime")
        assert main(["bench", str(small_artifact), "--against", "onnxruntime", "--rounds", "1", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert [row["framework"] for row in report["rows"]] == ["subtune", "onnxruntime"]

    def test_model_that_has_gone(self, own_artifact, capsys):
        manifests.write(own_artifact, replace(manifests.read(own_artifact), source=Source("gone.onnx")))
        assert main(["bench", str(own_artifact), "--against", "default"]) == 2
        assert "compiled from gone.onnx, which is not there" in capsys.readouterr().err

    def test_model_that_has_changed(self, own_artifact, capsys, tmp_path):
        (tmp_path / "m.onnx").write_bytes(b"other")
        source = Source(str(tmp_path / "m.onnx"), "0" * 64)
        manifests.write(own_artifact, replace(manifests.read(own_artifact), source=source))
        assert main(["bench", str(own_artifact)]) == 2
        assert "has changed since the artifact was compiled" in capsys.readouterr().err


class TestDevice:
    def test_json_round_trip(self, capsys, tmp_path):
        assert main(["device", "--json", "--threads", "3"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["threads"] == 3
        (tmp_path / "d.json").write_text(json.dumps({"l2_bytes": 12345678}))
        assert main(["device", "--device", str(tmp_path / "d.json")]) == 0
        assert "12345678" in capsys.readouterr().out

    def test_unknown_processor(self, capsys):
        assert main(["device", "--target", "z80"]) == 2
        assert "'z80'" in capsys.readouterr().err


class TestDatabase:
    @pytest.fixture
    def db(self, tmp_path):
        """A database with one winner, one loser and one failure of the workload c = a + 1."""
        import tvm
        from tvm import te

        from subtune.backends import as_device
        from subtune.backends.cpu.device import CPU
        from subtune.core.candidate import DEFAULT, Candidate
        from subtune.core.measurement import Failure, FailureKind, Measurement, Timing
        from subtune.core.record import Record
        from subtune.core.workload import Workload
        from subtune.database import Database

        a = te.placeholder((8,), name="a")
        workload = Workload.of(te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0, name="c")]), 1)
        assert tvm is not None
        scope = as_device(CPU("auto", 2)).scope()
        device = scope.device
        fast, slow = Timing(1e-6, 1e-6, 0.0, 5), Timing(2e-6, 2e-6, 0.0, 5)
        winner = Candidate.make("fast", width=8)
        with Database(tmp_path / "t.db") as database:
            outcomes = [(winner, fast), (DEFAULT, slow), (Candidate.make("bad"), Failure(FailureKind.CRASH, "boom"))]
            database.add_measurements(workload, scope, [Measurement(c, outcome) for c, outcome in outcomes])
            record = Record(workload.key, device, winner, fast, slow, 2.0, "0" * 16, 20, 2, 1, True)
            database.add_record(workload, record, scope.versions)
        return str(tmp_path / "t.db"), workload.key

    def test_list(self, db, capsys):
        path, key = db
        assert main(["db", "list", "--db", path]) == 0
        assert capsys.readouterr().out.split()[:4] == [key, "1.0", "us", "(2.00x)"]
        assert main(["db", "list", "--db", path, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["candidate"] == "fast(width=8)"

    def test_show_has_failures_too(self, db, capsys):
        path, key = db
        assert main(["db", "show", key[:6], "--db", path]) == 0
        out = capsys.readouterr().out
        assert "crash  bad()  boom" in out
        assert main(["db", "show", key, "--db", path, "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["measurements"]) == 3
        assert main(["db", "show", "zzz", "--db", path]) == 2
        assert "no workload has" in capsys.readouterr().err

    def test_gc_and_import(self, db, capsys, tmp_path):
        path, _ = db
        assert main(["db", "gc", "--db", path, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"deleted": 0}
        assert main(["db", "import", str(tmp_path / "none"), "--db", path]) == 2
        assert capsys.readouterr().err.startswith("subtune: error: ")

    def test_merge(self, db, capsys, tmp_path):
        source, key = db
        target = str(tmp_path / "target.db")
        assert main(["db", "merge", source, "--db", target]) == 0
        expected = f"{source}: 1 of 1 workloads, 3 of 3 measurements, 1 of 1 winners came over\n"
        assert capsys.readouterr().out == expected
        assert main(["db", "list", "--db", target]) == 0
        assert capsys.readouterr().out.startswith(key)
        assert main(["db", "merge", str(tmp_path / "none.db"), "--db", target]) == 2
        assert capsys.readouterr().err == (
            f"subtune: error: there is no database {tmp_path / 'none.db'}; name the file of one\n"
        )
        assert not (tmp_path / "none.db").exists()

    def test_list_of_nothing(self, capsys, tmp_path):
        assert main(["db", "list", "--db", str(tmp_path / "new.db")]) == 0
        assert capsys.readouterr().out == "no records\n"


class TestZoo:
    def test_list_and_build(self, monkeypatch, capsys, tmp_path):
        calls = []

        class Model:
            def SerializeToString(self) -> bytes:
                return b"model"

        def build(name: str, **options: object) -> Model:
            calls.append((name, options))
            return Model()

        fake = types.ModuleType("subtune.models")
        fake.names = lambda: ("a",)
        fake.quantised_names = lambda: ("bb",)
        fake.describe = lambda name: f"about {name}"
        fake.build = build
        monkeypatch.setitem(sys.modules, "subtune.models", fake)
        monkeypatch.setattr(subtune, "models", fake, raising=False)
        assert main(["zoo", "list"]) == 0
        assert capsys.readouterr().out == "a   about a\nbb  about bb\n"
        path = tmp_path / "a.onnx"
        options = "--batch 4 --dtype float16 --set layers=2 --set width=0.5 --set fused=true --set act=gelu"
        assert main(["zoo", "build", "a", "-o", str(path), *options.split()]) == 0
        assert path.read_bytes() == b"model"
        expected = {"batch": 4, "dtype": "float16", "layers": 2, "width": 0.5, "fused": True, "act": "gelu"}
        assert calls == [("a", expected)]
        assert main(["zoo", "build", "a", "-o", str(tmp_path / "none" / "a.onnx")]) == 2


def test_a_reader_that_has_gone_is_no_error():
    done = subprocess.run(
        ["sh", "-c", '"$@" | true; exit "$?"', "sh", *RUN, "device"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_progress_is_described():
    start = Progress("key", 0, 10, 0, 0, math.inf, math.inf)
    assert describe(start) == "0/10 subgraphs done"
    later = Progress("key", 2, 10, 5, 20, 1e-4, 75)
    assert describe(later) == "2/10 subgraphs done, candidate 5/20, best 100.0 us, 1:15 left"


def test_entry_point_is_what_pyproject_names():
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["subtune"] == "subtune.cli:main"
