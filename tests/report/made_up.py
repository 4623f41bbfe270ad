"""An account with everything that the page shows, made up: no compile is needed."""

from __future__ import annotations

from dataclasses import replace

from subtune.core.account import (
    Account,
    Decision,
    LatencyAt,
    Life,
    MemoryUse,
    Node,
    Rival,
    ShapedKernel,
    ShapedSubgraph,
    Span,
    Tried,
    TunedSubgraph,
)
from subtune.core.domain import Domain, Symbol
from subtune.core.manifest import FileEntry, Manifest, Source, SubgraphEntry
from subtune.core.memory_plan import MemoryPlan
from subtune.core.tensor_spec import TensorSpec

EVIL = "</script><b>&\"'"
"""What a model's names may be."""

_TRIED = (
    Tried("gemm(m=8)", 9e-6, 1e-5, "", "", 0.0),
    Tried("gemm(m=4)", 1.1e-5, 2e-5, "", "", 1.5),
    Tried("gemm(m=99)", 3e-6, 0.0, "build", f"no registers {EVIL}", 2.0),
)
_GEMM = TunedSubgraph(
    "fused_matmul",
    2,
    "matmul",
    "gemm(m=8)",
    4e-5,
    1e-5,
    9e-6,
    2_000_000,
    40_000,
    4e11,
    2e10,
    3,
    (("build", 1),),
    _TRIED,
)
_SUM = TunedSubgraph("tir_sum", 1, "sum", "rows(n=2)", 3e-6, 2e-6, 0.0, 4_000, 16_000, 4e11, 2e10, 0, (), ())
_NODES = (
    Node("matmul + relu", "contraction", "fused_matmul", ("matmul_0: float32[8,8]",), (f"sum_0 reads {EVIL}",), ()),
    Node("matmul + relu", "contraction", "fused_matmul", ("matmul_1: float32[8,8]",), (), (0,)),
    Node("reshape", "view", "", ("reshape_0: float32[64]",), ("a view costs nothing",), (1,)),
    Node("sum", "reduction", "tir_sum", ("sum_0: float32[8]",), (), (0, 2)),
)
_RIVALS = (
    Rival("as partitioned", "", 2, 2e-5, ""),
    Rival("one kernel", "the products need not be stored", 1, 1.5e-5, ""),
    Rival("three kernels", "", 3, 0.0, f"not tuned {EVIL}"),
)
ACCOUNT = Account(
    subgraphs=(_GEMM, _SUM),
    nodes=_NODES,
    decisions=(Decision("matmul_0", 2, 1, _RIVALS),),
    seconds=(("prepare", 0.5), ("tune", 30.0)),
    notes=(f"a note {EVIL}",),
    memory=MemoryUse(("fused_matmul", "fused_matmul", "tir_sum"), (Life(0, 256, 0, 2), Life(256, 256, 1, 2))),
)
SHAPED = replace(
    ACCOUNT,
    shaped=(
        ShapedSubgraph(
            "fused_matmul",
            2,
            ("2*n",),
            ((2,), (16,)),
            (
                ShapedKernel("gemm(m=2)", True, (1e-6, 3e-5)),
                ShapedKernel("gemm(m=8)", True, (2e-6, 1e-5)),
                ShapedKernel(f"gemm{EVIL}", False, (0.0, 2e-5)),
            ),
            (Span(2, 4, 0), Span(5, 16, 1)),
            0.015,
        ),
        ShapedSubgraph("tir_sum", 1, ("n", "m"), ((1, 1),), (ShapedKernel("rows(n=2)", True, (2e-6,)),), (), 0.0),
    ),
    latencies=tuple(LatencyAt((n, m), n * m * 1e-6) for n in range(1, 9) for m in (1, 3)),
)
"""The same of a model of many shapes."""
MANIFEST = Manifest(
    name=f"net {EVIL}",
    inputs=(TensorSpec("x", (8, 8), "float32"),),
    outputs=(TensorSpec("y", (8,), "float32"),),
    kind="cpu",
    target="llvm",
    triple="x86_64-linux-gnu",
    device="cpu/x",
    features=(),
    threads=2,
    versions=(("tvm", "0.27"),),
    source=Source(EVIL),
    subgraphs=(SubgraphEntry("fused_matmul", "w", "gemm(m=8)", "", "h", 4e-5, 1e-5),),
    weights=(),
    memory=MemoryPlan(512, 512, 1024, ()),
    files=(FileEntry("model.so", 1, "0" * 64),),
)
DOMAIN = Domain((Symbol.uniform("n", tuple(range(1, 9))), Symbol.uniform("m", (1, 3))))
OF_MANY_SHAPES = replace(MANIFEST, inputs=(TensorSpec("x", ("n", "m"), "float32"),), domain=DOMAIN)
