"""`--precision bf16` from the model to the artifact: what it computes, what it says, and where it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from subtune import models
from subtune.artifact import load
from subtune.backends import device_of
from subtune.backends.cpu.device import CPU
from subtune.cli.main import main
from subtune.core.errors import SubtuneError, TargetError, VerificationError
from subtune.core.numerics import Numerics
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from subtune.pipeline import prepare
from subtune.verification.verify import output_error, verify
from tests.whole import IS_WHOLE

needs_bf16 = pytest.mark.skipif(
    "avx512bf16" not in CPU("auto").features, reason="this processor has no AVX512-BF16 to run the model on"
)


OTHERS = ("gpt2", "mobilenet_v2", "unet") if IS_WHOLE else ("unet",)


@needs_bf16
@pytest.mark.parametrize(
    "name",
    ["resnet18", "bert", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)],
)
def test_a_model_in_bf16_is_close_to_the_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.subtune"
    report = compile_model(
        models.reduced(name), path, tune=False, threads=2, database=tmp_path / "t.db", precision="bf16"
    )
    assert "of the largest value, cosine similarity 0.999" in report.verified
    assert report.verified in str(report)
    assert "precision bf16" in str(report)
    artifact = load(path)
    assert artifact.manifest.source.precision == "bf16"
    kinds = {entry.dtype for entry in artifact.manifest.weights}
    assert "bfloat16" in kinds
    floats = [spec for spec in (*artifact.inputs, *artifact.outputs) if "float" in spec.dtype]
    assert {spec.dtype for spec in floats} == {"float32"}


@needs_bf16
def test_tuned_kernels_multiply_in_bf16(workers: LocalMeasurer, tmp_path: Path) -> None:
    """The kernels that are measured are linked, their weights packed in pairs; fp32 and bf16 do not mix.

    Two million multiplications, of which the default schedule makes one at a time: it does not win.
    """
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[64, 256] x) => (float[64, 128] y) { y = MatMul(x, w) }'
    )
    weight = rng.standard_normal((256, 128), dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    in_bf16 = ("contraction_bf16(", "amx(")
    for attempt in range(5):  # on a machine that is disturbed all the while, the default is kept in doubt
        options = {"topk": 3, "threads": 2, "database": tmp_path / f"{attempt}.db", "measurer": workers}
        report = compile_model(model, tmp_path / "half.subtune", precision="bf16", **options)
        if any(row.candidate.startswith(in_bf16) for row in report.rows):
            break
    full = compile_model(model, tmp_path / "full.subtune", **options)
    assert not report.failures
    assert sum(row.failed for row in report.rows) == 0
    assert any(row.candidate.startswith(in_bf16) for row in report.rows)
    assert not any(row.candidate.startswith(in_bf16) for row in full.rows)
    half = load(tmp_path / "half.subtune")
    assert all(s.measured_hash in ("", s.linked_hash) for s in half.manifest.subgraphs)
    assert "int32" in {entry.dtype for entry in half.manifest.weights}
    x = rng.standard_normal((64, 256), dtype=np.float32)
    got, expected = half.run({"x": x})["y"], load(tmp_path / "full.subtune").run({"x": x})["y"]
    assert 0 < np.abs(got - expected).max() < 0.02 * np.abs(expected).max()


def test_the_commands_refuse_a_processor_without_bf16(
    small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = tmp_path / "device.json"
    device.write_text(json.dumps({"features": [f for f in CPU("auto").features if f != "avx512bf16"]}))
    code = main(
        ["compile", str(small_model), "-o", str(tmp_path / "m.subtune"), "--precision", "bf16", "--device", str(device)]
    )
    assert code == 2
    err = capsys.readouterr().err
    assert "AVX512-BF16" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "m.subtune").exists()


def test_a_device_is_asked_for_the_feature() -> None:
    bf16 = Numerics(precision="bf16")
    assert device_of("znver4", numerics=bf16, is_measured=False).numerics.precision == "bf16"
    device_of("skylake-avx512", is_measured=False)
    with pytest.raises(TargetError, match="skylake-avx512 has not"):
        device_of("skylake-avx512", numerics=bf16, is_measured=False)


def test_there_is_no_other_precision(small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SubtuneError, match="choose fp32 or bf16"):
        prepare(small_model, numerics=Numerics(precision="fp8"))
    with pytest.raises(SystemExit):
        main(["compile", str(small_model), "--precision", "fp8"])
    assert "fp8" in capsys.readouterr().err


class TestBf16Error:
    def test_small_errors_pass_and_are_measured_by_the_largest_value(self) -> None:
        expected = np.linspace(-10, 10, 200, dtype=np.float32)
        error = output_error("y", expected + np.float32(0.1), expected, "bf16")
        assert error.is_within
        assert error.max_rel == pytest.approx(0.01, rel=1e-3)
        assert error.cosine > 0.999
        assert not output_error("y", expected + np.float32(0.1), expected).is_within

    def test_a_large_error_of_one_element_does_not_pass(self) -> None:
        expected = np.ones(1000, np.float32)
        got = expected.copy()
        got[7] = 1.1
        assert not output_error("y", got, expected, "bf16").is_within

    def test_another_direction_does_not_pass(self) -> None:
        """Every element within 5 % of the largest, and yet not the same answer."""
        expected = np.zeros(1000, np.float32)
        expected[0] = 1.0
        got = expected + np.where(np.arange(1000) % 2, 0.04, -0.04).astype(np.float32)
        error = output_error("y", got, expected, "bf16")
        assert error.max_rel < error.tolerance
        assert not error.is_within
        assert "cosine similarity" in str(error)

    def test_integers_stay_exact(self) -> None:
        assert not output_error("y", np.array([3]), np.array([4]), "bf16").is_within

    def test_zeros(self) -> None:
        zeros = np.zeros(4, np.float32)
        assert output_error("y", zeros, zeros, "bf16").is_within
        assert not output_error("y", zeros + np.float32(0.1), zeros, "bf16").is_within

    def test_verify_takes_the_precision(self, small_artifact: Path) -> None:
        artifact = load(small_artifact)

        def off(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: value * np.float32(1.01) for name, value in artifact.run(inputs).items()}

        assert verify(artifact, off, "another", precision="bf16").min_cosine > 0.999
        with pytest.raises(VerificationError, match="max rel error"):
            verify(artifact, off, "another")
