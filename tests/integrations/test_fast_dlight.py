"""The published examples of FastDlight, as written there but for TVM's module names; without a GPU nothing is timed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

import subtune
from subtune import CUDA, DefaultPolicy, TensorCorePolicy, apply_and_build, get_tensorized_func_and_tags
from subtune.core.errors import SubtuneError
from subtune.integrations import fast_dlight as dl
from tests.backends.cuda.gemm_workloads import product

target = Target("nvidia/nvidia-a100")


def ir_module() -> dict[str, Any]:
    return {"main": product(512, 512, 512, "nt", acc="float16").func}


def test_tune_with_default_policy() -> None:
    func = ir_module()["main"]
    arch = CUDA(target)
    policy = DefaultPolicy(func=func, arch=arch)
    configs = policy.emit_config(20)
    cpresults, best = apply_and_build(func, configs[:3], arch, parallel_build=True)
    assert 3 <= len(configs) <= 20
    assert all(not config.family.startswith("cuda.mma") for config in configs)
    assert [result.config for result in cpresults] == configs[:3]
    assert best is not None
    assert "mma.sync" not in best.code


def test_tune_with_tensor_core_policy() -> None:
    func = ir_module()["main"]
    arch = CUDA(target)
    policy = TensorCorePolicy(
        func=func,
        arch=arch,
        tags={
            "tensorcore_config": [0, 1],
            "pipeline_stage": 2,
            "use_async_copy": 1,
        },
    )
    configs = policy.emit_config(20)
    _, best = apply_and_build(func, configs[:3], arch, parallel_build=True)
    assert all(config.family == "cuda.mma" for config in configs)
    assert int(configs[0]["stages"]) >= 2
    assert best is not None
    assert "mma.sync" in best.code


def test_auto_normalize() -> None:
    func = ir_module()["main"]
    arch = CUDA(target)
    policy: Any = DefaultPolicy(func=func, arch=arch)
    func, tags = get_tensorized_func_and_tags(func, arch.target())
    if tags:
        policy = TensorCorePolicy(func=func, arch=arch, tags=tags)
    assert tags == {"tensorcore_config": [0, 1], "pipeline_stage": 2, "use_async_copy": 1}
    assert policy.emit_config(20)[0].family == "cuda.mma"


def test_what_does_not_qualify(caplog: pytest.LogCaptureFixture) -> None:
    func = product(64, 64, 64, "nt", dtype="float32").func
    with caplog.at_level(logging.INFO):
        _, tags = get_tensorized_func_and_tags(func, target)
    assert tags is None
    assert "tf32 is not allowed" in caplog.text
    with pytest.raises(SubtuneError, match=r"tf32 is not allowed.*DefaultPolicy"):
        TensorCorePolicy(func, CUDA(target)).emit_config(20)


def relax_module() -> Any:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((256, 512), "float16"))
    w = relax.Var("w", relax.TensorType((512, 256), "float16"))
    with bb.function("main", [x, w]):
        with bb.dataflow():
            first = bb.emit(relax.op.matmul(x, w, out_dtype="float32"))
            result = bb.emit_output(relax.op.matmul(x, w))
        bb.emit_func_output(relax.Tuple([first, result]))
    return relax.transform.LegalizeOps()(bb.get())


def test_tune_a_module_and_reuse_its_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    relax_mod = relax_module()
    tuned = dl.ApplyFastTuning(topk=4, target=target, parallel_build=True, meta_database_dir=str(tmp_path))(relax_mod)
    names = [gvar.name_hint for gvar, func in tuned.functions_items() if "tirx.is_scheduled" in (func.attrs or {})]
    assert len(names) == 2
    assert "is no trace of its function" in caplog.text, "half sums are widened: not a schedule of what was given"

    database = ms.database.JSONDatabase(
        path_workload=str(tmp_path / "database_workload.json"),
        path_tuning_record=str(tmp_path / "database_tuning_record.json"),
    )
    with database, CUDA(target).target():
        again = relax.transform.MetaScheduleApplyDatabase(enable_warning=True)(relax_mod)
    replayed = [name for name in names if "ldmatrix" in again[name].script()]
    assert replayed == [name for name in names if "tirx.is_scheduled" in again[name].attrs]
    assert len(replayed) == 1


def test_public_names() -> None:
    for name in ("CUDA", "DefaultPolicy", "TensorCorePolicy", "ApplyFastTuning", "apply_and_build"):
        assert getattr(subtune, name) is not None
