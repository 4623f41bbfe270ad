"""Attention for Hopper that stores its keys and values as results: what is accepted, what is stored by whom, builds."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.sym import Analyzer

from subtune import backends
from subtune.backends.cpu.device import CPU
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.driver import driver_device
from subtune.backends.cuda.families import FAMILIES
from subtune.backends.cuda.families.attention import FAMILY, walk
from subtune.backends.cuda.families.attention.copies import Copied, copied_of
from subtune.backends.cuda.families.attention.operands import Lying, operands_of
from subtune.backends.cuda.families.attention.scores import scores_of
from subtune.backends.cuda.families.attention.store_copies import StoreCopies
from subtune.backends.cuda.families.attention.tiling import Knobs
from subtune.backends.cuda.lowering.pipeline import register
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.chain import chain_expressions
from subtune.patterns.chain_copies import ChainWithCopies, CopyingChain, copying_chain
from subtune.patterns.recognise import recognise
from subtune.tir.rebuild import Rebuild
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.attention_workloads import attention_that_gives
from tests.backends.cuda.proposals import proposed
from tests.backends.cuda.test_attention import kernel_of

H200 = CUDA("H200")
HERE = driver_device()

CASES: dict[str, dict[str, Any]] = {
    "causal, tails": {"heads": 2, "keys": 130, "dim": 64},
    "shared keys": {"heads": 6, "keys": 100, "dim": 40, "shared": 3, "is_causal": False},
    "causal, shared keys": {"heads": 4, "keys": 200, "dim": 72, "shared": 2},
    "as they lie": {"heads": 2, "keys": 96, "dim": 128, "heads_first": False, "is_causal": False},
    "as float32": {"heads": 3, "keys": 130, "dim": 72, "given_dtype": "float32"},
    "values as float32, bfloat16": {
        "heads": 4,
        "keys": 96,
        "dim": 64,
        "shared": 2,
        "given": "v",
        "dtype": "bfloat16",
        "given_dtype": "float32",
    },
    "values only, bfloat16": {"heads": 3, "keys": 150, "dim": 64, "given": "v", "dtype": "bfloat16"},
}
KNOBS = (Knobs(64, 2, 1), Knobs(48, 2, 2, True))


def chain_of(workload: Workload) -> CopyingChain:
    chain = copying_chain(workload.func, workload.num_outputs)
    assert isinstance(chain, CopyingChain), chain
    return chain


def copies_of(workload: Workload) -> tuple[tuple[Lying, Lying, Lying], tuple[Copied, ...]]:
    chain, params = chain_of(workload), list(workload.func.params)
    operands = operands_of(chain.form, params)
    assert not isinstance(operands, NotApplicable), operands
    copied = copied_of(chain, operands, scores_of(chain.form), params)
    assert not isinstance(copied, NotApplicable), copied
    return operands, copied


def test_it_is_a_pattern_of_its_own_that_one_family_takes() -> None:
    workload = attention_that_gives(2, 130, 64)
    found = recognise(workload)
    assert isinstance(found, ChainWithCopies)
    assert found.copies == 2
    assert found.chain == recognise(attention_that_gives(2, 130, 64, given=""))
    assert isinstance(chain_expressions(workload.func, workload.num_outputs), NotApplicable)
    assert [family.name for family in FAMILIES if proposed(family, workload, H200)] == [FAMILY.name]
    assert not backends.candidates(workload, CUDA("A100"))
    assert not backends.candidates(workload, CPU("auto"))


def test_a_copy_is_stored_by_the_first_head_that_reads_it() -> None:
    _, copied = copies_of(attention_that_gives(6, 100, 40, shared=3, is_causal=False))
    assert [copy.operand for copy in copied] == [1, 2]
    for copy in copied:
        assert (copy.lies.first, copy.lies.rows, copy.lies.pitch, copy.lies.inner) == (0, 100, 40, 40)
        assert sorted(term.stride for term in copy.lies.terms) == [100 * 40, 2 * 100 * 40]
        assert [count for _, count in copy.sharing] == [3]


@pytest.mark.parametrize("other", [{"cut": 2}, {"rows": 64}, {"given": "qk"}, {"given": "kk"}])
def test_what_is_not_all_of_the_keys_or_values_is_not_proposed(other: dict[str, Any]) -> None:
    workload = attention_that_gives(2, 130, 64, **other)
    assert not proposed(FAMILY, workload, H200)
    assert not backends.candidates(workload, H200)


@pytest.mark.parametrize("knobs", KNOBS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_every_element_is_stored_once(case: str, knobs: Knobs) -> None:
    """Tile by tile, by the kernel's own expressions of who stores which box, and where from."""
    workload = attention_that_gives(**CASES[case])
    chain, (operands, copied) = chain_of(workload), copies_of(workload)
    tiles = walk.Walk(chain.form, knobs, H200.sms, scores_of(chain.form).offset, {})
    stores = StoreCopies(tiles, copied, tuple(None for _ in copied))
    joined = np.arange(np.prod(workload.args[operands[0].param].shape), dtype=np.float64)
    # the reference computes in float64, in which the places of the elements are exact
    given = [np.zeros(arg.shape) for arg in workload.args if not arg.is_output]
    given[operands[0].param] = joined.reshape(workload.args[operands[0].param].shape)
    results = [i for i, arg in enumerate(workload.args) if arg.is_output]
    right = dict(zip(results, cuda_on_cpu.reference(workload, given), strict=True))
    for copy in copied:
        source, found = operands[copy.operand], np.full(np.prod(workload.args[copy.lies.param].shape), -1)
        with patch.object(walk.T, "Bind", lambda value: value):
            for tile in range(tiles.tiles):
                at = tirx.const(tile, "int32")
                outer, first = tiles.outer(at), tiles.first_row(at)
                for block in range(_int(tiles.steps(first))):
                    if not _int(stores._is_owner(copy, outer, first, tirx.const(block, "int32"))):
                        continue
                    rows = np.arange(block * knobs.keys, min((block + 1) * knobs.keys, copy.lies.rows))
                    to, origin = (_addresses(lies, outer, rows) for lies in (copy.lies, source))
                    assert (found[to] == -1).all()
                    found[to] = joined[origin]
        assert np.array_equal(found, right[copy.lies.param].ravel())


def _int(value: Any) -> int:
    return int(value) if isinstance(value, int) else int(Analyzer().simplify(value).value)


def _addresses(lies: Lying, outer: dict[Any, Any], rows: np.ndarray) -> np.ndarray:
    there = lies.first + sum(_int(Rebuild(outer)(term.value)) * term.stride for term in lies.terms)
    return there + rows[:, None] * lies.pitch + np.arange(lies.inner)


def built(workload: Workload, knobs: Knobs) -> tuple[str, int]:
    """The kernel's text, and what it spills."""
    target = H200.target()
    with target:
        kernel = kernel_of(workload, knobs)
        text = tvm.compile(kernel.func, target=target, tir_pipeline=register()).mod.imports[0].inspect_source()
    (found,) = resources(compile_source(text, target))
    return text[text.rindex("main_kernel(") :], found.stack_bytes


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize("case", ["causal, shared keys", "values only, bfloat16"])
def test_it_builds_with_stores_of_the_copy_engine(case: str) -> None:
    workload = attention_that_gives(**CASES[case])
    body, stack_bytes = built(workload, Knobs(64, 2, 1))
    count = len(copies_of(workload)[1])
    assert body.count("bulk_wait_group_read_0()") == count
    assert body.count("global_shared__cta_bulk_group(") == count * (2 if CASES[case]["dim"] > 64 else 1)
    assert stack_bytes <= 8


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize("case", ["as float32", "values as float32, bfloat16"])
def test_it_builds_with_warps_that_widen(case: str) -> None:
    workload = attention_that_gives(**CASES[case])
    body, stack_bytes = built(workload, Knobs(64, 2, 2))
    assert body.count("subtune::widen(") == len(copies_of(workload)[1])
    assert "bulk_wait_group_read_0()" not in body
    assert stack_bytes <= 24  # of the warps that widen: addresses that they need once a stage


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str) or HERE.capability != 90, reason=f"no Hopper GPU: {HERE}")
@pytest.mark.parametrize("case", CASES)
def test_copies_on_a_gpu(case: str) -> None:
    """Every fourth candidate: attention against float64, the copies bit by bit."""
    workload = attention_that_gives(**CASES[case])
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args if not arg.is_output]
    device, params = tvm.cuda(0), {copy.lies.param for copy in copies_of(workload)[1]}
    outputs = [(i, arg) for i, arg in enumerate(workload.args) if arg.is_output]
    want = cuda_on_cpu.reference(workload, inputs)
    for candidate in proposed(FAMILY, workload, H200)[::4]:
        kernel = kernel_of(workload, candidate.as_knobs(Knobs))
        with H200.target():
            built = tvm.compile(kernel.func, target=H200.target(), tir_pipeline=register())
        results = [tvm.runtime.tensor(np.full(arg.shape, np.nan).astype(arg.dtype), device) for _, arg in outputs]
        built["main"](*(tvm.runtime.tensor(x, device) for x in inputs), *results)
        for (i, _), result, right in zip(outputs, results, want, strict=True):
            got = result.numpy().astype(np.float64)
            limit = 0.0 if i in params else 6e-3 if workload.args[0].dtype == "bfloat16" else 1e-3
            assert np.linalg.norm(got - right) <= limit * np.linalg.norm(right), (candidate, i)
