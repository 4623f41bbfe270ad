"""Two contractions fused over their rows: what is recognised, and that every tile computes what numpy computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.families.chain.candidates import cache_limit_bytes
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.measurement import Timing
from subtune.core.workload import Workload
from subtune.measure import LocalMeasurer
from subtune.patterns.chain import Chain, ChainExpressions, chain_expressions
from subtune.patterns.recognise import recognise
from tests.backends.cpu.chains import bert_attention, build_one, exp_chain, feed_forward, gpt2_attention
from tests.backends.workloads import batch_matmul, dense, layer_norm, softmax

Reference = Callable[..., np.ndarray]


def exp_reference(a: np.ndarray, b: np.ndarray, e: np.ndarray) -> np.ndarray:
    return np.exp(np.float32(0.02).astype(float) * (a @ b)) @ e


def feed_forward_reference(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, residual: Any) -> np.ndarray:
    hidden = x @ w1 + b1
    erf = np.vectorize(math.erf)
    return (0.5 * hidden * (1 + erf(hidden / np.sqrt(2)))) @ w2 + b2 + residual


def attention_reference(q: Any, k: Any, v: Any, mask: np.ndarray, batch: int, heads: int) -> np.ndarray:
    """Rows of q, k, v are [batch * seq], columns [heads * d]; `mask` is added."""
    rows, width = q.shape
    q, k, v = (x.reshape(batch, rows // batch, heads, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width // heads) + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(rows, width)


def bert_reference(batch: int, heads: int) -> Reference:
    return lambda q, k, v, mask: attention_reference(q, k, v, mask, batch, heads)


def gpt2_reference(heads: int) -> Reference:
    def reference(qkv: np.ndarray) -> np.ndarray:
        hidden = np.triu(np.full((len(qkv), len(qkv)), -np.inf), 1)
        return attention_reference(*np.split(qkv, 3, axis=1), hidden, 1, heads)

    return reference


CASES: dict[str, tuple[Callable[[], Workload], Reference]] = {
    "exp": (lambda: exp_chain(32, 24, 48, 64), exp_reference),
    "exp, nothing divides": (lambda: exp_chain(37, 29, 41, 53), exp_reference),
    "exp, constants": (lambda: exp_chain(37, 29, 41, 53, constant=True), exp_reference),
    "feed forward": (lambda: feed_forward(23, 24, 50, 41), feed_forward_reference),
    "bert": (lambda: bert_attention(1, 3, 32, 16), bert_reference(1, 3)),
    "bert, two sequences of prime length": (lambda: bert_attention(2, 3, 17, 8), bert_reference(2, 3)),
    "bert, one head": (lambda: bert_attention(1, 1, 19, 16, flat=False), bert_reference(1, 1)),
    "gpt2": (lambda: gpt2_attention(2, 32, 16), gpt2_reference(2)),
    "gpt2, prime length": (lambda: gpt2_attention(3, 37, 16), gpt2_reference(3)),
}

TILE: dict[str, Any] = {
    "mb": 8,
    "mr": 4,
    "nr": 16,
    "mr2": 4,
    "nr2": 16,
    "pack": "once",
    "pack_e": True,
    "copy_a": False,
}


def tile(**knobs: Any) -> Candidate:
    return Candidate.make("chain", **{**TILE, **knobs})


def inputs_of(workload: Workload) -> list[Any]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args if not arg.is_output]


def compute(workload: Workload, kernel: Kernel, inputs: list[Any], device: CPUModel) -> np.ndarray:
    arrays = [*inputs, np.full(workload.args[-1].shape, np.nan, np.float32)]
    for index, packing in kernel.packings:
        arrays[index] = packing(arrays[index])
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    func = kernel.func.with_attr("global_symbol", "main")
    tvm.compile(func, target=device.target(), tir_pipeline=PIPELINE)["main"](*tensors)
    return tensors[-1].numpy()


def check(workload: Workload, candidate: Candidate, inputs: list[Any], want: Any, device: CPUModel) -> None:
    kernel = backends.schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel), f"{candidate}: {kernel}"
    got = compute(workload, kernel, inputs, device)
    assert np.array_equal(np.isnan(got), np.isnan(want)), str(candidate)
    assert np.nanmax(np.abs(got - want)) <= 2e-6 * np.nanmax(np.abs(want)), str(candidate)


def in_double(inputs: list[Any]) -> list[Any]:
    return [x.astype(float) for x in inputs]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_the_policys_candidates_are_right(case: str, device: CPUModel) -> None:
    build, reference = CASES[case]
    workload = build()
    inputs = inputs_of(workload)
    want = reference(*in_double(inputs))
    proposed = backends.candidates(workload, device, topk=20)
    for candidate in [proposed[0], proposed[len(proposed) // 2], proposed[-1]]:
        check(workload, candidate, inputs, want, device)


TILES = {
    "rows of a block are several tiles": tile(mb=16),
    "packed per batch, rows copied": tile(pack="batch", copy_a=True),
    "tiles of different shapes": tile(mb=12, mr=6, mr2=3, nr=32),
    "large accumulators": tile(mr=8, mr2=8, nr=48, nr2=32),
    "a block beyond the last row": tile(mb=40, copy_a=True),
    "one thread": tile(serial=True),
}


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("case", ["exp, nothing divides", "bert, two sequences of prime length"])
def test_tiles(name: str, case: str, device: CPUModel) -> None:
    build, reference = CASES[case]
    workload = build()
    inputs = inputs_of(workload)
    check(workload, TILES[name], inputs, reference(*in_double(inputs)), device)


def test_a_right_operand_read_where_it_lies(device: CPUModel) -> None:
    workload = bert_attention(1, 3, 32, 16)
    inputs = inputs_of(workload)
    check(workload, tile(pack="batch", pack_e=False), inputs, bert_reference(1, 3)(*in_double(inputs)), device)


@pytest.mark.parametrize("seq", [16, 19])
def test_masks_of_minus_infinity(seq: int, device: CPUModel) -> None:
    """Masked columns weigh nothing; where all are masked the softmax is NaN, as its definition says, and only there."""
    workload = bert_attention(2, 2, seq, 16)
    inputs = inputs_of(workload)
    inputs[3][:] = 0
    inputs[3][0, ..., seq // 2 :] = -np.inf
    inputs[3][1] = -np.inf
    with np.errstate(invalid="ignore"):
        want = bert_reference(2, 2)(*in_double(inputs))
    assert not np.isnan(want[:seq]).any()
    assert np.isnan(want[seq:]).all()
    check(workload, tile(pack="batch"), inputs, want, device)


def test_large_scores_do_not_overflow(device: CPUModel) -> None:
    workload = bert_attention(1, 2, 19, 16)
    inputs = inputs_of(workload)
    inputs[0] *= 1000
    want = bert_reference(1, 2)(*in_double(inputs))
    kernel = backends.schedule(workload, tile(), device)
    assert isinstance(kernel, Kernel)
    got = compute(workload, kernel, inputs, device)
    assert np.abs(got - want).max() <= 1e-3  # scores of 3000 have an error of 2e-4 in float32


def test_narrower_target_is_right() -> None:
    device = CPU("haswell", threads=2)
    workload = gpt2_attention(2, 21, 16)
    inputs = inputs_of(workload)
    want = gpt2_reference(2)(*in_double(inputs))
    for candidate in backends.candidates(workload, device)[:2]:
        check(workload, candidate, inputs, want, device)


def form_of(workload: Workload) -> ChainExpressions:
    form = chain_expressions(workload.func, workload.num_outputs)
    assert isinstance(form, ChainExpressions), form
    return form


def test_what_is_recognised() -> None:
    found = form_of(bert_attention(2, 3, 17, 8)).pattern
    assert (found.batch, found.m, found.n1, found.n2, found.k) == (6, 17, 17, 8, 8)
    assert found.is_softmax
    assert [axis.role for axis in found.first.axes] == ["batch", "batch", "m", "n", "k"]
    assert not found.b_is_contiguous  # K is read across its rows, V along them
    assert found.e_is_contiguous

    found = form_of(exp_chain(20, 30, 40, 50, constant=True)).pattern
    assert (found.batch, found.m, found.n1, found.n2, found.k) == (1, 20, 40, 50, 30)
    assert not found.is_softmax
    assert (found.first.b.param, found.first.b.is_constant, found.first.b.axes) == (1, True, (2, 1))
    assert (found.second.b.param, found.second.b.is_constant, found.second.b.axes) == (2, True, (2, 1))


def test_how_a_model_writes_it_does_not_matter() -> None:
    flat, straight = (form_of(bert_attention(2, 3, 17, 8, flat=flat)) for flat in (True, False))
    assert flat.pattern == straight.pattern
    assert flat.pattern.batch == 6


@pytest.mark.parametrize(
    ("workload", "anchor"),
    [
        (lambda: exp_chain(8, 8, 8, 8), "Chain"),
        (lambda: gpt2_attention(2, 8, 8), "Chain"),
        (lambda: dense(8, 16, 8), "Contraction"),
        (lambda: batch_matmul(2, 8, 8, 8), "Contraction"),
        (lambda: softmax(4, 8), "Rowwise"),
        (lambda: layer_norm(4, 8), "Rowwise"),
    ],
)
def test_summaries(workload: Callable[[], Workload], anchor: str) -> None:
    assert type(recognise(workload())).__name__ == anchor


def softmax_over_rows(emit: Any, a: Any, b: Any, e: Any) -> Any:
    return op.matmul(emit(op.nn.softmax(emit(op.matmul(a, b)), axis=0)), e)


def half_a_softmax(emit: Any, a: Any, b: Any, e: Any) -> Any:
    scores = emit(op.matmul(a, b))
    return op.matmul(emit(op.divide(scores, emit(op.sum(scores, axis=1, keepdims=True)))), e)


def parallel_products(emit: Any, a: Any, b: Any, e: Any) -> Any:
    return op.add(emit(op.matmul(a, b)), emit(op.matmul(a, e)))


def mixed_rows(emit: Any, a: Any, b: Any, e: Any) -> Any:
    return op.matmul(emit(op.permute_dims(emit(op.matmul(a, b)))), e)


def scores_of_both(emit: Any, a: Any, b: Any, e: Any) -> Any:
    scores = emit(op.matmul(a, b))
    return op.matmul(scores, emit(op.add(emit(op.permute_dims(scores)), e)))


@pytest.mark.parametrize(
    ("body", "shape", "reason"),
    [
        (softmax_over_rows, (8, 8), "softmax does not run over the rows"),
        (half_a_softmax, (8, 8), "no chain"),
        (parallel_products, (8, 8), "does not read the first"),
        (scores_of_both, (8, 8), "through one operand"),
        (lambda emit, a, b, e: op.matmul(emit(op.exp(emit(op.matmul(a, b)))), e), (1, 8), "no rows"),
        (lambda emit, a, b, e: op.sum(emit(op.matmul(emit(op.matmul(a, b)), e)), axis=1), (8, 8), "no chain"),
    ],
)
def test_what_is_no_chain_says_why(body: Any, shape: tuple[int, int], reason: str, device: CPUModel) -> None:
    workload = build_one(body, [shape, (8, 8), (8, 8)])
    refused = backends.schedule(workload, tile(), device)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason
    assert not isinstance(recognise(workload), Chain)


def test_rows_and_columns_may_change_places(device: CPUModel) -> None:
    """(a @ b)^T @ e: what were columns become the rows that are shared, and b becomes the left operand."""
    workload = build_one(mixed_rows, [(24, 16), (16, 20), (24, 32)])
    inputs = inputs_of(workload)
    a, b, e = in_double(inputs)
    assert form_of(workload).pattern.m == 20
    check(workload, tile(), inputs, (a @ b).T @ e, device)


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"nr": 20}, "vector lanes"),
        ({"mb": 10}, "do not divide"),
        ({"pack": "somewhere"}, "somewhere"),
        ({"nr2": 32, "pack_e": False}, "whole panels"),
    ],
)
def test_illegal_tiles_say_why(knobs: dict[str, Any], reason: str, device: CPUModel) -> None:
    refused = backends.schedule(gpt2_attention(2, 16, 16), tile(**knobs), device)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason


def test_rows_too_long_for_the_cache_are_refused(device: CPUModel) -> None:
    device = replace(device, l3_bytes=32 << 20)  # this machine's may hold them
    workload = gpt2_attention(1, 8192, 16)
    refused = backends.schedule(workload, tile(mb=128), device)
    assert isinstance(refused, NotApplicable)
    assert "online softmax" in refused.reason
    found = form_of(workload).pattern
    for candidate in backends.candidates(workload, device):
        assert found.cached_bytes(int(candidate["mb"]), int(candidate["nr"])) <= cache_limit_bytes(device)


@pytest.mark.parametrize("name", ["znver4", "haswell", "x86-64"])
def test_candidates_fit_the_machine(name: str) -> None:
    device = CPU(name, threads=2)
    workload = bert_attention(1, 12, 128, 64)
    found = form_of(workload).pattern
    proposed = backends.candidates(workload, device)
    assert len(proposed) == 20
    assert proposed == backends.candidates(workload, device)
    assert proposed[0].predicted_s == min(candidate.predicted_s for candidate in proposed)
    for candidate in proposed:
        assert candidate.family == "chain"
        mb, mr, nr, nr2 = (int(candidate[knob]) for knob in ("mb", "mr", "nr", "nr2"))
        vectors = max(nr, nr2) // device.lanes()
        assert mr * vectors + vectors + 1 <= device.vector_registers
        assert mb % mr == 0
        assert found.cached_bytes(mb, nr) <= cache_limit_bytes(device)
        assert candidate["pack"] == "once" or found.batch > 1


def test_constants_are_packed_at_compile_time(device: CPUModel) -> None:
    workload = exp_chain(37, 29, 41, 53, constant=True)
    kernel = backends.schedule(workload, tile(), device)
    assert isinstance(kernel, Kernel)
    assert {index: packing.shape for index, packing in kernel.packings} == {1: (3, 29, 16), 2: (4, 41, 16)}
    assert tuple(int(d) for d in kernel.func.params[1].shape) == (3, 29, 16)
    allocated = {buffer.name for buffer in kernel.func.body.block.alloc_buffers}
    assert not {"b_packed", "e_packed"} & allocated


def test_the_measurer_agrees_with_the_default_schedule(device: CPUModel, workers: LocalMeasurer) -> None:
    """As a compile does: built in another process, checked against the default schedule, timed."""
    workload = bert_attention(1, 3, 24, 16)
    candidates = backends.candidates(workload, device)[:2]
    with workers.session(workload, device) as session:
        session.build(candidates, math.inf)
        for candidate in candidates:
            assert isinstance(session.time(candidate, 0.001, math.inf), Timing)
