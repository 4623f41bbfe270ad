"""`subtune bench --fail-below`: the exit code is what the figures say."""

from __future__ import annotations

import argparse

import pytest

from subtune.bench.artifact_race import BenchReport
from subtune.bench.race import BenchRow
from subtune.cli import main
from subtune.cli.verdict import TOO_SLOW, complaints, exit_code, ratio


def report(ratios: dict[str, float], failures: tuple[tuple[str, str], ...] = (), max_rel: float = 0.0) -> BenchReport:
    rows = [BenchRow("subtune", 1e-3, 1e-3, 1.0, 3, 0)]
    rows += [BenchRow(name, 1e-3 * value, 1e-3, value, 3, 0, max_rel=max_rel) for name, value in ratios.items()]
    return BenchReport("m", 1, "cpu", tuple(rows), failures)


@pytest.mark.parametrize(
    ("ratios", "least", "code"),
    [
        ({"onnxruntime": 1.2, "default": 1.0}, 1.0, 0),
        ({"onnxruntime": 0.99, "default": 3.0}, 1.0, TOO_SLOW),
        ({"onnxruntime": 0.99, "default": 3.0}, 0.95, 0),
        ({"onnxruntime": 1.4, "default": 1.6}, 1.5, TOO_SLOW),
    ],
)
def test_the_code_follows_from_the_slowest_ratio(ratios, least, code):
    assert exit_code(report(ratios), tuple(ratios), least) == code


def test_every_complaint_is_a_sentence(capsys):
    found = report({"onnxruntime": 0.5}, (("openvino", "it crashed"),))
    assert exit_code(found, ("onnxruntime", "openvino"), 1.0) == TOO_SLOW
    assert capsys.readouterr().err.splitlines() == [
        "subtune: below --fail-below: onnxruntime takes 0.50 times as long as subtune, which is below 1",
        "subtune: below --fail-below: openvino was not timed: it crashed",
    ]
    assert complaints(report({"a": 2.0}, max_rel=1.0), ("a",), 1.0) == ["a gives other outputs than subtune"]
    lost = BenchReport("m", 1, "cpu", report({"a": 2.0}).rows[1:], (("subtune", "it crashed"),))
    assert complaints(lost, ("a",), 1.0) == ["subtune was not timed: it crashed"]


def test_numbers():
    assert ratio("0.95") == 0.95
    for text in ("0", "-1", "nan", "inf", "fast"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a number above zero"):
            ratio(text)


@pytest.mark.slow
@pytest.mark.parametrize(("least", "code"), [("1e-9", 0), ("1e9", TOO_SLOW)])
def test_a_real_race(small_artifact, capsys, least, code):
    pytest.importorskip("onnxruntime")
    options = ["--against", "onnxruntime", "--rounds", "1", "--round-time", "10ms", "--fail-below", least]
    assert main(["bench", str(small_artifact), *options]) == code
    assert ("takes" in capsys.readouterr().err) == (code == TOO_SLOW)


def test_there_has_to_be_something_to_compare_with(small_artifact, capsys):
    assert main(["bench", str(small_artifact), "--against", "none", "--fail-below", "1"]) == 2
    assert "--fail-below has nothing to compare with" in capsys.readouterr().err
    assert main(["bench", "--suite", "cpu", "--fail-below", "1"]) == 2
    assert "--fail-below is for one model, not for a suite" in capsys.readouterr().err
