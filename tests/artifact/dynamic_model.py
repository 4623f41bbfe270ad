"""A model with symbols, written by hand: what its machine code takes, and what numpy says it computes.

`x: float32[batch, seq, 4]`, `cache: float32[batch, past, 4]` and `mask: int64[batch, past + seq]` give

- `y: float32[batch, past + seq, 4]`: the cache and x behind it, times four weights and the mask;
- `flat: float32[4*batch*past + 4*batch*seq]`: a copy of y that no kernel writes;
- `sums: float32[batch, seq]`: x's sums over the last axis, which lie in the arena and are copied from there.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from subtune import runtime
from subtune.artifact import manifest as manifests
from subtune.artifact.writer import laid_out, write_weights
from subtune.core.domain import Domain, Symbol
from subtune.core.manifest import LIBRARY_NAME, WEIGHTS_NAME, FileEntry, Manifest, Source
from subtune.core.memory_plan import Base, MemoryPlan, View
from subtune.core.tensor_spec import TensorSpec

WEIGHTS = np.array([1, 2, 3, 4], np.float32)
INPUTS = (
    TensorSpec("x", ("batch", "seq", 4), "float32"),
    TensorSpec("cache", ("batch", "past", 4), "float32"),
    TensorSpec("mask", ("batch", "past + seq"), "int64"),
)
OUTPUTS = (
    TensorSpec("y", ("batch", "past + seq", 4), "float32"),
    TensorSpec("flat", ("4*batch*past + 4*batch*seq",), "float32"),
    TensorSpec("sums", ("batch", "seq"), "float32"),
)
DOMAIN = Domain(  # in no order but its own
    (
        Symbol.uniform("seq", tuple(range(1, 6))),
        Symbol("batch", (1, 2, 4), (0.5, 0.25, 0.25)),
        Symbol.uniform("past", tuple(range(9))),
    )
)


def arrays(batch: int, past: int, seq: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of an instance."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((batch, seq, 4), np.float32),
        "cache": rng.standard_normal((batch, past, 4), np.float32),
        "mask": rng.integers(0, 2, (batch, past + seq)),
    }


def expected(x: np.ndarray, cache: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """What the model computes, in numpy."""
    y = np.concatenate([cache, x], axis=1) * WEIGHTS * mask[..., None].astype(np.float32)
    return {"y": y, "flat": y.reshape(-1), "sums": x.sum(2)}


def write_dynamic(folder: Path, **changes: Any) -> Path:
    """The artifact at `folder`, with other fields in its manifest."""
    import tvm

    from subtune.backends.cpu.device import CPU
    from subtune.backends.cpu.lowering.bounded import write_in_time
    from subtune.backends.cpu.lowering.pipeline import PIPELINE

    device, weights = CPU(threads=2), [runtime.as_tensor(WEIGHTS.copy(), TensorSpec("w", (4,), "float32"))]
    folder.mkdir()
    module = tvm.IRModule({"main": _main()})
    compiled = partial(tvm.compile, target=device.target(), tir_pipeline=PIPELINE)
    write_in_time(compiled, module, device.target(), folder / LIBRARY_NAME)
    table = laid_out(weights)
    write_weights(weights, table, folder / WEIGHTS_NAME)
    y = View(Base.OUTPUT, 0, (4, 13, 4), "float32")
    sums = View(Base.ARENA, 0, (4, 5), "float32")
    fields: dict[str, Any] = {
        "name": "dynamic",
        "inputs": INPUTS,
        "outputs": OUTPUTS,
        "kind": "cpu",
        "target": str(device.target()),
        "triple": device.host.triple,
        "device": device.fingerprint(),
        "features": (),
        "threads": 2,
        "versions": tuple(runtime.versions().items()),
        "source": Source(),
        "subgraphs": (),
        "weights": table,
        "memory": MemoryPlan(128, 128, 128, (y, sums), ((1, y), (2, sums)), takes_addresses=True),
        "files": tuple(
            FileEntry(name, (folder / name).stat().st_size, manifests.sha256_of(folder / name))
            for name in (LIBRARY_NAME, WEIGHTS_NAME)
        ),
        "domain": DOMAIN,
    }
    manifests.write(folder, Manifest(**{**fields, **changes}))
    return folder


def _main() -> Any:
    """As `straight_line` makes them, and behind the addresses the symbols in the domain's order."""
    from tvm.script import tirx as T

    @T.prim_func
    def main(
        header: T.int64,
        weights: T.int64,
        arena: T.int64,
        x: T.int64,
        cache: T.int64,
        mask: T.int64,
        y: T.int64,
        flat: T.int64,
        sums: T.int64,
        seq: T.int64,
        batch: T.int64,
        past: T.int64,
    ):
        T.func_attr({"global_symbol": "main"})
        w = T.decl_buffer((4,), data=T.tvm_struct_get(T.reinterpret("handle", weights + header), 0, 1, "handle"))
        s = T.decl_buffer((20,), data=T.tvm_struct_get(T.reinterpret("handle", arena + header), 0, 1, "handle"))
        a = T.decl_buffer((80,), data=T.tvm_struct_get(T.reinterpret("handle", x + header), 0, 1, "handle"))
        c = T.decl_buffer((128,), data=T.tvm_struct_get(T.reinterpret("handle", cache + header), 0, 1, "handle"))
        m = T.decl_buffer((52,), "int64", data=T.tvm_struct_get(T.reinterpret("handle", mask + header), 0, 1, "handle"))
        o = T.decl_buffer((208,), data=T.tvm_struct_get(T.reinterpret("handle", y + header), 0, 1, "handle"))
        for b in T.serial(batch):
            for t in T.serial(past):
                for k in T.serial(4):
                    o[(b * (past + seq) + t) * 4 + k] = (
                        c[(b * past + t) * 4 + k] * w[k] * T.cast(m[b * (past + seq) + t], "float32")
                    )
            for t in T.serial(seq):
                s[b * seq + t] = T.float32(0)
                for k in T.serial(4):
                    o[(b * (past + seq) + past + t) * 4 + k] = (
                        a[(b * seq + t) * 4 + k] * w[k] * T.cast(m[b * (past + seq) + past + t], "float32")
                    )
                    s[b * seq + t] = s[b * seq + t] + a[(b * seq + t) * 4 + k]

    return main
