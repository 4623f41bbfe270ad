"""An anchor has several implementations, which compete; what each packs is its own, and packed by who wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import subtune
from subtune import backends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.backends.cuda.device import CUDA
from subtune.driver import compile_model
from subtune.frontends.onnx.reference import onnxruntime_reference
from subtune.pipeline import prepare
from subtune.tuning import winners
from subtune.tuning.winners import schedule_kernels
from tests.qdq_graph import QdqGraph

HOST = CPU("auto", threads=2)
IMPLEMENTATIONS = ("contraction_int8", "winograd")


@pytest.fixture
def convolution(tmp_path: Path) -> Path:
    """3x3, of bytes, 32 to 32 channels."""
    graph = QdqGraph((1, 32, 8, 8))
    weight, scales = graph.weight((32, 32, 3, 3))
    y = graph.op("Conv", graph.operand(), weight, graph.bias(32, scales), pads=[1, 1, 1, 1])
    path = tmp_path / "convolution.onnx"
    onnx.save(graph.model(graph.floats(graph.quantised(y, 0.5, 120), 0.5, 120)), path)
    return path


def anchored(model: Path, device: Any) -> Any:
    """The subgraph of the convolution."""
    prepared = prepare(model, forms=device.backend.forms(device.model))
    return next(subgraph for subgraph in prepared.subgraphs if "conv2d" in subgraph.name)


def test_implementations_are_ranked_in_one_pool(convolution: Path) -> None:
    device = as_device(CPU("icelake-server", threads=2))
    proposed = backends.candidates(anchored(convolution, device).workload, device, topk=200)
    assert {candidate.family for candidate in proposed} >= set(IMPLEMENTATIONS)
    seconds = [candidate.predicted_s for candidate in proposed]
    first = {family: next(c.predicted_s for c in proposed if c.family == family) for family in IMPLEMENTATIONS}
    assert min(first.values()) == seconds[0]
    on_gpu = as_device(CUDA("H100"))
    families = {c.family for c in backends.candidates(anchored(convolution, on_gpu).workload, on_gpu, topk=200)}
    assert "cuda.wgmma" in families
    assert len(families) > 1


@pytest.mark.skipif("avx512vnni" not in HOST.features, reason="the processor has no AVX512-VNNI")
def test_packing_is_the_candidates_own_and_done_when_the_model_is_compiled(
    convolution: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(1).standard_normal((1, 32, 8, 8), dtype=np.float32)
    reference = onnxruntime_reference(str(convolution))
    assert reference is not None
    (expected,) = reference({"x0": x}).values()
    packed = {}
    for family in IMPLEMENTATIONS:

        def schedule(subgraphs: Any, chosen: Any, device: Any, family: str = family) -> Any:
            forced = {}
            for subgraph in subgraphs:
                found = [c for c in backends.candidates(subgraph.workload, device, topk=200) if c.family == family]
                forced |= {subgraph.workload.key: found[0]} if found else {}
            made = schedule_kernels(subgraphs, forced, device)
            packed[family] = [kernel.packings for kernel in made.values() if kernel.packings]
            return made

        monkeypatch.setattr(winners, "schedule_kernels", schedule)
        path = tmp_path / f"{family}.subtune"
        compile_model(convolution, path, tune=False, threads=2, database=tmp_path / "t.db")
        (got,) = subtune.load(path).run({"x0": x}).values()
        np.testing.assert_array_equal(got, expected)
    device = as_device(HOST)
    weight = next(arg for arg in anchored(convolution, device).workload.args if arg.dtype == "int8")
    words = np.prod(weight.shape) // 4
    sizes = [int(np.prod(packing.shape)) for (((_, packing),),) in packed.values()]
    assert sizes == [words, 36 * 32 * (32 // 2 + 1)]
    stored = [(tmp_path / f"{family}.subtune" / "weights.bin").stat().st_size for family in IMPLEMENTATIONS]
    assert stored[1] - stored[0] >= 4 * (sizes[1] - sizes[0])
