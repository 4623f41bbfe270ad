"""CUDA as a device kind: its model, its code built without a GPU, and where there is one, measured and run on it."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

from subtune import backends, models
from subtune.artifact import load
from subtune.artifact import manifest as manifests
from subtune.backends import device_of
from subtune.backends.cuda.building import binaries as cuda_binaries
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA, CUDAModel, is_cuda_target
from subtune.backends.cuda.driver import driver_device
from subtune.backends.cuda.lowering.default_schedule import default_schedule, pipeline
from subtune.backends.cuda.published import DEVICES, limits_of
from subtune.cli.main import main
from subtune.core import manifest as core_manifest
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import ArtifactError, TargetError
from subtune.core.kernel import NotApplicable
from subtune.core.measurement import Failure, FailureKind, Timing
from subtune.core.numerics import Numerics
from subtune.driver import compile_model
from subtune.measure import Comparison, LocalMeasurer
from subtune.pipeline import prepare

sys.path.append(str(Path(__file__).parent))
cuda_schedules = importlib.import_module("cuda_schedules")

HERE = driver_device()
needs_compiler = pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")


def gpu(test):
    """Mark a test that runs on a GPU."""
    return pytest.mark.gpu(pytest.mark.skipif(isinstance(HERE, str), reason=f"no GPU: {HERE}")(test))


@pytest.mark.parametrize(
    ("target", "arch", "capability", "sms"),
    [
        ("H200", "sm_90a", 90, 132),
        ("nvidia/nvidia-h100", "sm_90a", 90, 132),
        ("NVIDIA A100-SXM4-80GB", "sm_80", 80, 108),
        ("rtx-4090", "sm_89", 89, 128),
        ("nvidia/geforce-rtx-3080", "sm_86", 86, 82),
        ("sm_103a", "sm_103a", 103, 148),
        ("sm_75", "sm_75", 75, 40),
        ("cuda -arch=sm_86", "sm_86", 86, 82),
        ({"kind": "cuda", "arch": "sm_120", "multi_processor_count": 50}, "sm_120", 120, 50),
        ('{"kind": "cuda", "arch": "sm_90"}', "sm_90", 90, 132),
    ],
)
def test_a_target_in_any_spelling_is_a_device(target, arch, capability, sms):
    assert is_cuda_target(target)
    device = CUDA(target)
    assert (device.arch, device.capability, device.sms) == (arch, capability, sms)
    assert device.shared_per_block_bytes > 48 * 1024
    assert str(device.target().attrs["arch"]) == arch


@pytest.mark.parametrize(
    ("target", "words"),
    [("sm_9", "sm_90a"), ("sm_35", "too old"), ("h1000", "no GPU is known"), ('{"kind":"llvm"}', "not cuda")],
)
def test_what_is_no_gpu_is_refused_in_one_sentence(target, words):
    with pytest.raises(TargetError, match=words) as e:
        CUDA(target)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("target", ["auto", "znver4", "apple-m1", "raspberry-pi/4b-aarch64", '{"mcpu": "znver4"}'])
def test_a_cpu_is_no_gpu(target):
    assert not is_cuda_target(target)


def test_published_rates_are_those_of_the_data_sheets():
    """Dense TFLOP/s with sums in float32, as NVIDIA gives them."""
    sheets = {"V100": 125, "T4": 65, "A100": 312, "RTX 3090": 71, "RTX 4090": 165, "L4": 121, "H100": 989, "B200": 2250}
    for name, expected in sheets.items():
        assert CUDA(name).mma_flops("float16") == pytest.approx(expected * 1e12, rel=0.02)
    assert CUDA("A100").fma_flops() == pytest.approx(19.5e12, rel=0.01)
    assert CUDA("T4").mma_flops("bfloat16") == 0.0


def test_devices_keep_to_the_limits_of_their_capability():
    for published in DEVICES:
        device = CUDA(published.name)
        limits = limits_of(device.capability)
        assert device.shared_per_block_bytes <= device.shared_per_sm_bytes == limits.shared_bytes
        assert device.max_threads_per_sm % device.warp_size == 0
        assert device.peak_flops() >= device.fma_flops() > 1e12
        assert device.l2_bytes_per_s > device.dram_bytes_per_s


def test_switches_are_part_of_what_measurements_belong_to():
    plain = device_of("H100", is_measured=False)
    given = device_of("H100", numerics=Numerics(tensor_core="off", tf32=True), is_measured=False)
    assert given.fingerprint() != plain.fingerprint()
    with pytest.raises(TargetError, match="for a GPU only"):
        device_of("auto", numerics=Numerics(tf32=True))


def test_a_file_overrides_fields(tmp_path):
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({"sms": 20, "mma_flops_per_cycle": {"float16": 64}}))
    device = device_of("H100", description=file, is_measured=False)
    assert device.model.sms == 20
    assert device.model.mma_flops("float16") == 64 * 20 * device.model.cycles_per_s
    file.write_text(json.dumps({"smss": 20}))
    with pytest.raises(TargetError, match="unknown fields smss"):
        device_of("H100", description=file, is_measured=False)


def test_binaries_survive_the_file(tmp_path):
    binaries = {"a" * 64: b"\x7fELF" + bytes(range(256)), "b" * 64: b""}
    cuda_binaries.write_binaries(tmp_path / "k", binaries)
    assert cuda_binaries.read_binaries(tmp_path / "k") == binaries


@needs_compiler
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_source_becomes_machine_code_that_says_what_it_takes(arch):
    source = """extern "C" __global__ void twice(float* x) {
      __shared__ float s[100];
      s[threadIdx.x] = x[threadIdx.x];
      __syncthreads();
      x[threadIdx.x] = 2 * s[99 - threadIdx.x];
    }"""
    (found,) = resources(compile_source(source, CUDA(arch).target()))
    assert (found.kernel, found.stack_bytes) == ("twice", 0)
    assert found.shared_bytes >= 400
    assert 4 <= found.registers <= 32
    with pytest.raises(RuntimeError, match="does not compile"):
        compile_source("this is no CUDA", CUDA(arch).target())


@needs_compiler
def test_the_kernels_that_judge_and_calibrate_compile():
    from subtune.backends.cuda.timing.source import SOURCE

    for arch in ("sm_75", "sm_90a"):
        names = {found.kernel for found in resources(compile_source(SOURCE, CUDA(arch).target()))}
        assert {"judge", "judge_bytes", "summarise", "checksum", "spin", "read_l2", "nothing"} <= names


def test_an_unknown_template_is_a_reason():
    first, *_ = prepare(models.reduced("mlp")).subgraphs
    outcome = backends.schedule(first.workload, Candidate("cuda.magic"), CUDA("H100"))
    assert outcome == NotApplicable("unknown family 'cuda.magic'")
    assert isinstance(backends.schedule(first.workload, Candidate("contraction"), CUDA("H100")), NotApplicable)


def test_the_reference_computes_in_float64():
    first, *_ = prepare(models.reduced("mlp"), numerics=Numerics(precision="fp16")).subgraphs
    kernel = backends.schedule(first.workload, Candidate("cuda.reference"), CUDA("H100"))
    dtypes = {str(param.dtype) for param in kernel.func.params}
    assert dtypes == {"float64"}
    assert "float16" in {arg.dtype for arg in first.workload.args}


@needs_compiler
def test_a_model_is_built_for_a_gpu_that_is_not_here(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(CUDAModel, "obstacle", lambda self: "this machine has no such GPU")
    out = tmp_path / "m.subtune"
    command = (
        f"compile zoo:mlp?image=16&hidden=32 --batch 3 --dtype float16 --target sm_80 --db {tmp_path}/t.db -o {out}"
    )
    assert main(command.split()) == 0
    printed = capsys.readouterr().out
    assert "measured there; the model was not verified" in printed
    assert "precision fp16" in printed
    manifest = manifests.read(out)
    assert (manifest.kind, manifest.inputs[0].shape[0], manifest.inputs[0].dtype) == ("cuda", 3, "float32")
    assert {weight.dtype for weight in manifest.weights} >= {"float16"}
    assert all(entry.measured_hash == "" for entry in manifest.subgraphs)
    binaries = cuda_binaries.read_binaries(out / core_manifest.BINARIES_NAME)
    kernels = [found.kernel for code in binaries.values() for found in resources(code)]
    assert len(kernels) >= len(manifest.subgraphs)
    library = (out / core_manifest.LIBRARY_NAME).read_bytes()
    assert all(cuda_binaries.token(key).encode() in library for key in binaries)
    assert b"__global__" not in library
    with pytest.raises(ArtifactError, match=r"compiled for CUDA .*, and this machine has no such GPU"):
        load(out, check=True)
    assert main(["inspect", str(out)]) == 0
    assert "cuda/sm_80" in capsys.readouterr().out


def test_the_command_line_says_what_does_not_go_together(tmp_path, capsys):
    for command, words in {
        "compile zoo:mlp --dtype float16": "fp16 is for GPUs",
        "compile m.onnx --batch 3": "--batch is for models of the zoo",
        "device --target H100 --calibrate": "cannot be calibrated",
        "compile zoo:mlp --dtype bfloat16 --target sm_75": "sm_80 or newer",
    }.items():
        assert main(f"{command}".split()) == 2
        assert words in capsys.readouterr().err
    assert main(["device", "--target", "L4"]) == 0
    printed = capsys.readouterr().out
    assert "sm_89" in printed
    assert "published, not measured" in printed


def test_a_policy_gives_candidates_in_the_order_of_their_predictions():
    for subgraph in prepare(models.reduced("resnet18"), numerics=Numerics(precision="fp16")).subgraphs:
        found = backends.candidates(subgraph.workload, CUDA("H100"), 20)
        assert len(found) <= 20
        assert all(candidate.family.startswith("cuda.") for candidate in found)
        assert found == backends.candidates(subgraph.workload, CUDA("H100"), 20)


@pytest.fixture(scope="module")
def device() -> CUDAModel:
    return CUDA("auto")


@pytest.fixture(scope="module")
def session(device):
    search = [str(Path(__file__).parent)]
    with (
        LocalMeasurer(builders=2, schedule="cuda_schedules:schedule", search_path=search) as measurer,
        measurer.session(cuda_schedules.workload(), device) as opened,
    ):
        yield opened


@gpu
def test_the_driver_tells_the_device(device):
    assert device.obstacle() == ""
    assert device.sms > 0
    assert 0.5e9 < device.cycles_per_s < 4e9
    assert device.l2_bytes_per_s > device.dram_bytes_per_s > 1e11


@gpu
def test_outcomes_on_a_gpu_are_values_and_none_harms_the_next(session):
    right, wrong, illegal = (Candidate(name) for name in ("right", "wrong", "illegal"))
    session.build([DEFAULT, right, wrong, illegal], math.inf)
    first = session.time(right, 0.02, math.inf)
    assert isinstance(first, Timing)
    assert 1e-6 < first.median_s < 1e-3
    failure = session.time(wrong, 0.02, math.inf)
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.WRONG_RESULT
    assert "[777]" in failure.message
    lost = session.time(illegal, 0.02, math.inf)
    assert isinstance(lost, Failure)
    assert lost.kind is FailureKind.CRASH
    assert "context was lost" in lost.message
    assert isinstance(session.time(right, 0.02, math.inf), Timing)


@gpu
def test_a_kernel_against_itself_gains_nothing(session):
    session.build([DEFAULT], math.inf)
    found = session.compare(DEFAULT, 0.1)
    assert isinstance(found, Comparison)
    assert abs(math.log(found.gain)) < max(0.03, 4 * found.noise)


@gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_model_runs_on_the_gpu(precision, tmp_path):
    out = tmp_path / "m.subtune"
    report = compile_model(
        models.reduced("resnet18"), out, target="cuda", database=tmp_path / "t.db", tune=False, precision=precision
    )
    assert "ONNX Runtime" in report.verified
    artifact = load(out, check=True)
    assert artifact.program.is_captured
    shape = artifact.inputs[0].shape
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    first, second = (artifact.run({"input": x})["output"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, artifact.run({"input": 2 * x})["output"])
    assert 1e-6 < artifact.program.device_seconds() < 1.0


@gpu
def test_calibration_is_plausible(device):
    from subtune.backends.cuda.timing.calibrate import calibrate

    found = calibrate(device).values
    assert 0.3 < found["dram_bytes_per_s"] / device.dram_bytes_per_s < 1.1
    assert found["l2_bytes_per_s"] > found["dram_bytes_per_s"]
    assert 60 <= found["shared_bytes_per_cycle"] <= 140
    assert 1e-7 < found["launch_s"] < 2e-5
    assert found["mma_sync float16"] > 0.3 * device.mma_flops("float16")


def test_the_default_schedule_of_a_maximum_from_minus_infinity_builds():
    """TVM lowers a maximum across threads only where it begins at the least finite number."""
    prepared = prepare(models.reduced("resnet18"), numerics=Numerics(precision="fp16"))
    pool = next(found for found in prepared.subgraphs if '"-inf"' in found.workload.func.script())
    device = CUDA("H200")
    scheduled = default_schedule(tvm.IRModule({"main": pool.workload.func}), device.target())
    tvm.compile(scheduled, target=device.target(), tir_pipeline=pipeline())
