"""Attention in one kernel for Hopper: what is seen of a graph, what is proposed, and that it builds and is right."""

from __future__ import annotations

import re
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op

from subtune import backends
from subtune.backends import as_device
from subtune.backends.base import Problem
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.driver import driver_device
from subtune.backends.cuda.families.attention import FAMILY
from subtune.backends.cuda.families.attention.operands import Term, operands_of
from subtune.backends.cuda.families.attention.schedule import schedule
from subtune.backends.cuda.families.attention.scores import scores_of
from subtune.backends.cuda.families.attention.tiling import Knobs
from subtune.backends.cuda.families.attention.walk import Walk
from subtune.backends.cuda.lowering.pipeline import register
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.chain import Chain, ChainExpressions, chain_expressions
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.attention_workloads import attention, fused
from tests.backends.cuda.dynamic_on_cpu import DynamicOnCpu
from tests.backends.cuda.proposals import allowing, proposed

H200 = CUDA("H200")
HERE = driver_device()


def form_of(workload: Any) -> ChainExpressions:
    form = chain_expressions(workload.func, workload.num_outputs)
    assert isinstance(form, ChainExpressions), form
    return form


def lying_of(workload: Any) -> Any:
    found = operands_of(form_of(workload), list(workload.func.params))
    assert not isinstance(found, NotApplicable), found
    return found


@pytest.mark.parametrize("hidden", [-65504.0, -np.inf])
@pytest.mark.parametrize("is_wide", [True, False])
def test_a_scale_and_a_causal_mask_are_a_factor_and_an_offset(is_wide: bool, hidden: float) -> None:
    scores = scores_of(form_of(attention(2, 48, 48, 64, mask="causal", hidden=hidden, is_wide=is_wide)))
    assert scores.factor == pytest.approx(1 / 8)
    assert scores.offset == 0
    plain = scores_of(form_of(attention(2, 48, 80, 64, is_wide=is_wide)))
    assert (plain.factor, plain.offset) == (pytest.approx(1 / 8), None)


def test_an_added_mask_is_an_expression() -> None:
    scores = scores_of(form_of(attention(2, 48, 80, 64, mask="added")))
    assert not scores.factor
    assert scores.offset is None


def test_heads_that_share_keys_are_a_term_of_the_address() -> None:
    workload = attention(6, 48, 80, 64, shared=3)
    q, k, _ = lying_of(workload)
    assert (q.rows, q.pitch, q.inner) == (48, 64, 64)
    assert (k.rows, k.pitch, k.inner) == (80, 64, 64)
    assert sorted(term.stride for term in k.terms) == [80 * 64, 2 * 80 * 64]
    assert {term.extent for term in k.terms} == {2}  # two heads of keys, two of the batch


def test_heads_of_a_joined_projection_are_read_where_they_lie() -> None:
    def body(emit: Any, qkv: Any) -> Any:
        parts = [emit(op.strided_slice(qkv, [2], [i * 128], [i * 128 + 128])) for i in range(3)]
        heads = [emit(op.permute_dims(emit(op.reshape(x, (2, 40, 2, 64))), [0, 2, 1, 3])) for x in parts]
        scores = emit(op.matmul(heads[0], emit(op.permute_dims(heads[1], [0, 1, 3, 2]))))
        return emit(op.matmul(emit(op.nn.softmax(scores)), heads[2]))

    q, k, v = lying_of(fused(body, [(2, 40, 384)], ["float16"]))
    assert [x.first for x in (q, k, v)] == [0, 128, 256]
    assert {x.pitch for x in (q, k, v)} == {384}
    assert sorted(term.stride for term in k.terms) == [64, 40 * 384]
    assert all(isinstance(term, Term) and term.extent == 2 for term in k.terms)


def test_who_is_accepted() -> None:
    half, single = attention(2, 48, 48, 64), attention(2, 48, 48, 64, dtype="float32")
    assert proposed(FAMILY, half, H200)
    assert not proposed(FAMILY, half, CUDA("A100"))
    assert not proposed(FAMILY, single, H200)
    misaligned = attention(2, 48, 48, 20)  # rows of 40 bytes
    assert not proposed(FAMILY, misaligned, H200)


def test_the_best_is_proposed_first_and_fits() -> None:
    workload = attention(16, 512, 512, 128, batch=4)
    found = sorted(proposed(FAMILY, workload, H200), key=lambda candidate: candidate.predicted_s)
    flops = 4 * 4 * 16 * 512 * 512 * 128
    assert 0.3 < flops / found[0].predicted_s / H200.mma_flops("float16") < 1
    assert found[0].as_knobs(Knobs).keys >= 64


def test_skipping_what_is_hidden_is_predicted() -> None:
    best = [
        min(c.predicted_s for c in proposed(FAMILY, attention(16, 2048, 2048, 64, mask=mask), H200))
        for mask in ("", "causal")
    ]
    assert best[1] < 0.7 * best[0]


def test_halves_and_float32_are_one_pattern() -> None:
    found = [form_of(attention(2, 48, 80, 64, is_wide=wide)).pattern for wide in (False, True)]
    assert isinstance(found[0], Chain)
    assert found[0].is_softmax
    assert found[0].dtypes == {"float16"}
    assert [(p.batch, p.m, p.n1, p.n2, p.k) for p in found] == [(4, 48, 80, 64, 64)] * 2


def kernel_of(workload: Any, knobs: Knobs) -> Kernel:
    device = allowing(H200)
    kernel = schedule(Problem(workload, device.model, device.numerics), knobs)
    assert isinstance(kernel, Kernel), kernel
    return kernel


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
def test_it_builds_with_scores_in_registers() -> None:
    workload = attention(4, 130, 130, 40, mask="causal", heads_last=True, is_wide=True)
    kernel = kernel_of(workload, Knobs(keys=64, stages=2, consumers=2))
    target = H200.target()
    with target:
        text = tvm.compile(kernel.func, target=target, tir_pipeline=register()).mod.imports[0].inspect_source()
    assert "wgmma" in text
    assert "cp.async.bulk.tensor" in text
    (found,) = resources(compile_source(text, target))
    assert found.stack_bytes == 0


def walk_of(heads: int, rows: int, knobs: Knobs, sms: int = 132) -> Walk:
    form = form_of(attention(heads, rows, rows, 64, mask="causal"))
    return Walk(form, knobs, sms, scores_of(form).offset, {})


@pytest.mark.parametrize(
    ("heads", "rows", "knobs", "most"),
    [
        (128, 1024, Knobs(128, 2, 2, persistent=True), 1.03),  # 1.13 where blocks took tiles in turn
        (128, 1024, Knobs(96, 2, 3, persistent=True), 1.05),
        (32, 2048, Knobs(128, 2, 2, persistent=True), 1.05),  # 1.41
        (16, 8192, Knobs(128, 2, 2, persistent=True), 1.02),  # 1.22
        (96, 512, Knobs(64, 2, 1, persistent=True, blocks=3), 1.2),  # fewer than two tiles of a block
    ],
)
def test_blocks_are_dealt_tiles_that_take_equally_long(heads: int, rows: int, knobs: Knobs, most: float) -> None:
    walk = walk_of(heads, rows, knobs)
    turns = walk.dealt()
    assert walk.is_dealt
    assert sorted(tile for tile in turns if tile < walk.tiles) == list(range(walk.tiles))
    assert len(turns) % walk.blocks == 0
    cost = []
    for block in range(walk.blocks):
        own = turns[block :: walk.blocks]
        end = own.index(walk.tiles)
        assert own[end:] == [walk.tiles] * (len(own) - end)  # a block that has no more tiles stays without
        assert own[:end] == sorted(own[:end])
        cost.append(sum(int(walk.steps(walk.first_row(tile))) + 1 for tile in own[:end]))
    assert max(cost) / (sum(cost) / len(cost)) < most


def test_tiles_are_dealt_where_that_evens_them_out() -> None:
    persistent = Knobs(128, 2, 2, persistent=True)
    assert not walk_of(128, 1024, Knobs(128, 2, 2)).is_dealt
    assert not walk_of(8, 1024, persistent).is_dealt  # one tile of a block
    assert not walk_of(1024, 1024, persistent).is_dealt  # sixty of a block
    assert not replace(walk_of(128, 1024, persistent), offset=None).is_dealt


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
def test_what_is_dealt_is_in_the_source() -> None:
    workload = attention(128, 256, 256, 64, mask="causal")
    kernel = kernel_of(workload, Knobs(keys=64, stages=2, consumers=1, persistent=True))
    target = H200.target()
    with target:
        text = tvm.compile(kernel.func, target=target, tir_pipeline=register()).mod.imports[0].inspect_source()
    tiles = re.search(r"unsigned short dealt_\w+_tiles\[\] = {([\d,]+)};", text)
    assert tiles
    assert [int(tile) for tile in tiles[1].split(",")] == walk_of(128, 256, Knobs(64, 2, 1, persistent=True)).dealt()
    (found,) = resources(compile_source(text, target))
    assert found.stack_bytes == 0


GPU_CASES: dict[str, dict[str, Any]] = {
    "ragged": {"heads": 3, "rows": 67, "keys": 197, "dim": 64},
    "causal": {"heads": 2, "rows": 300, "keys": 300, "dim": 128, "mask": "causal"},
    "causal, several tiles of a block": {"heads": 96, "rows": 512, "keys": 512, "dim": 64, "mask": "causal"},
    "causal, heads last, float32 between": {
        "heads": 4, "rows": 130, "keys": 130, "dim": 40, "mask": "causal", "heads_last": True, "is_wide": True,
    },
    "added mask": {"heads": 2, "rows": 96, "keys": 160, "dim": 80, "mask": "added"},
    "shared keys": {"heads": 6, "rows": 200, "keys": 264, "dim": 256, "shared": 3},
    "bfloat16": {"heads": 2, "rows": 128, "keys": 96, "dim": 72, "dtype": "bfloat16"},
}  # fmt: skip


EMULATED: dict[str, tuple[dict[str, Any], Knobs]] = {
    "ragged": ({"heads": 3, "rows": 67, "keys": 69, "dim": 64}, Knobs(32, 2, 1)),
    "heads that are neighbours": ({"heads": 2, "rows": 130, "keys": 70, "dim": 40}, Knobs(48, 2, 1, across=True)),
    "causal, turns": ({"heads": 1, "rows": 130, "keys": 130, "dim": 32, "mask": "causal"}, Knobs(64, 2, 2)),
    "a number for every key": ({"heads": 2, "rows": 40, "keys": 80, "dim": 72, "mask": "added"}, Knobs(32, 2, 1)),
    "a number for every score": ({"heads": 2, "rows": 40, "keys": 90, "dim": 64, "mask": "square"}, Knobs(32, 2, 1)),
    "no registers to ask ahead": ({"heads": 1, "rows": 9, "keys": 250, "dim": 64, "mask": "square"},
                                  Knobs(208, 1, 1)),
    "several tiles of a block": ({"heads": 67, "rows": 70, "keys": 32, "dim": 16}, Knobs(32, 2, 1, persistent=True)),
}  # fmt: skip


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no CUDA headers, or no C++ compiler")
@pytest.mark.parametrize("case", EMULATED)
def test_attention_computed_on_the_processor(case: str, tmp_path: Path) -> None:
    given, knobs = EMULATED[case]
    workload = attention(**{"batch": 1, **given})
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args if not arg.is_output]
    outputs = [(arg.shape, arg.dtype) for arg in workload.args if arg.is_output]
    (got,) = DynamicOnCpu(kernel_of(workload, knobs), as_device(H200), tmp_path)([], inputs, outputs)
    (want,) = cuda_on_cpu.reference(workload, inputs)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < 1e-3


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str) or HERE.capability != 90, reason=f"no Hopper GPU: {HERE}")
@pytest.mark.parametrize("case", GPU_CASES)
def test_attention_on_a_gpu(case: str) -> None:
    """Every fourth candidate against float64."""
    workload = attention(**GPU_CASES[case])
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args if not arg.is_output]
    (want,) = cuda_on_cpu.reference(workload, inputs)
    device = tvm.cuda(0)
    found = backends.candidates(workload, H200, topk=64)
    assert any(candidate.family == FAMILY.name for candidate in found)
    for candidate in [c for c in found if c.family == FAMILY.name][::4]:
        kernel = kernel_of(workload, candidate.as_knobs(Knobs))
        with H200.target():
            built = tvm.compile(kernel.func, target=H200.target(), tir_pipeline=register())
        arrays = [tvm.runtime.tensor(x, device) for x in inputs]
        out = tvm.runtime.tensor(np.full(workload.args[-1].shape, np.nan).astype(workload.args[-1].dtype), device)
        built["main"](*arrays, out)
        got = out.numpy().astype(np.float64)
        limit = 6e-3 if workload.args[0].dtype == "bfloat16" else 1e-3
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert error < limit, (astuple(candidate.as_knobs(Knobs)), error)
