"""How sums get to memory: the stores of Hopper's kernels, run on the processor with sums as wgmma has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from subtune.backends.cuda.building.parsed_once import parsed_once
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families.wgmma.epilogue import epilogue_of
from subtune.backends.cuda.families.wgmma.in_place import InPlace, neighbouring
from subtune.backends.cuda.families.wgmma.source import source_of
from subtune.backends.cuda.families.wgmma.store_form import store_of
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.backends.cuda.families.wgmma.walk import Walk
from subtune.core.workload import Workload
from subtune.patterns.contraction import contraction
from subtune.patterns.gemm_view import gemm_view
from subtune.patterns.stages import inline
from tests.backends.cpu.test_bf16 import workload_of
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.storing import storing
from tests.backends.cuda.test_wgmma import source
from tests.backends.cuda.wgmma_workloads import conv, dense

H200 = CUDA("H200")
_GUARD = 128  # elements round the output

CASES = {
    "rows": (dense(200, 64, 64), Tiling((128,), 64, 2)),
    "rows, two of 64 each": (dense(256, 96, 64, residual=True), Tiling((128,), 96, 2, 2, True)),
    "rows of float32": (dense(100, 64, 64, residual=True, sum_dtype="float32"), Tiling((64,), 64, 2, 1)),
    "swapped": (dense(400, 64, 64), Tiling((256,), 64, 2, 2, True, swapped=True)),
    "swapped, with a residual": (dense(300, 64, 64, residual=True), Tiling((256,), 64, 2, 1, swapped=True)),
    "swapped, in float32": (dense(200, 64, 64, residual=True, sum_dtype="float32"),
                            Tiling((128,), 64, 2, 2, True, swapped=True)),
    "swapped, columns beyond": (dense(200, 40, 64, residual=True), Tiling((128,), 64, 2, 1, swapped=True)),
    "swapped, columns of each": (dense(200, 128, 64, residual=True), Tiling((192,), 128, 2, 2, swapped=True)),
    "swapped, 128 columns of each": (dense(200, 128, 64), Tiling((96,), 128, 2, 2, True, swapped=True)),
    "swapped, an odd number of chunks": (dense(672, 64, 64), Tiling((224,), 64, 2, 1, swapped=True)),
    "swapped, pixels": (conv(7, 64, 64, 3, batch=5), Tiling((4, 8, 8), 64, 2, 2, True, swapped=True)),
    "swapped, columns that are not aligned": (dense(100, 61, 64), Tiling((64,), 64, 2, 1, swapped=True)),
}  # fmt: skip


@parsed_once()
def stored(workload: Workload, tiling: Tiling, in_place: bool = False) -> tuple[Any, int, list[int]]:
    """A kernel that stores the sums it is given, how many blocks it has, and which of the arguments it reads."""
    sch = Schedule(workload.func)
    stages = inline(sch)
    info = contraction(sch, stages.anchors[0])
    view = gemm_view(info)
    epilogue = epilogue_of(sch, stages, info)
    params = list(sch.mod["main"].params)
    multiplied = (source_of(sch, stages, info)[0], info.b.param)
    buffers = {
        param: T.buffer(tuple(int(d) for d in param.shape), str(param.dtype), align=16, buffer_name=param.name)
        for i, param in enumerate(params)
        if i not in multiplied
    }
    others = [i for i in range(len(params) - 1) if i not in multiplied]
    walk = Walk(view, tiling, info.a.dtype, H200.sms)
    store = store_of(epilogue, walk, buffers, in_place=in_place)
    assert isinstance(store.exchange, InPlace) == in_place
    assert tiling.obstacle(store.dtype, H200.shared_per_block_bytes, H200.shared_per_sm_bytes) == ""
    at_once = tiling.consumers if tiling.alternate else 1
    blocks = -(-walk.tiles // (2 * at_once))  # two tiles for each
    return storing(walk, store, list(buffers.values()), blocks), blocks, others


def tiles_of(array: np.ndarray, tiling: Tiling) -> np.ndarray:
    """`array`, the groups of rows and then columns, as tiles x rows x columns, with noise beyond its ends."""
    sizes = (*tiling.rows, tiling.columns)
    counts = [-(-extent // size) for extent, size in zip(array.shape, sizes, strict=True)]
    dtype = "int32" if array.dtype.kind == "i" else "float32"
    whole = np.full([count * size for count, size in zip(counts, sizes, strict=True)], 10**4, dtype)
    whole[tuple(slice(extent) for extent in array.shape)] = array
    split = whole.reshape([n for pair in zip(counts, sizes, strict=True) for n in pair])
    rank = len(sizes)
    return split.transpose(*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)).reshape(-1, tiling.m, tiling.columns)


def fragments(tiles: np.ndarray, tiling: Tiling) -> np.ndarray:
    """What each thread has of every tile's sums, as PTX says it of wgmma's D: tile, consumer, register, thread."""
    count64, width = tiling.multiplied
    sharing = 1 if tiling.alternate else tiling.consumers
    found = np.empty((len(tiles), sharing, count64, width // 2, 128), tiles.dtype)
    thread, i = np.arange(128), np.arange(width // 2)[:, None]
    row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    column = i // 4 * 8 + thread % 4 * 2 + i % 2
    for consumer in range(sharing):
        for m in range(count64):
            first = (consumer * count64 + m) * 64
            found[:, consumer, m] = tiles[:, column, first + row] if tiling.swapped else tiles[:, first + row, column]
    return found


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_a_tile_is_stored(case: str, tmp_path: Path) -> None:
    """relu(sum + bias + residual), where it belongs and nowhere else."""
    workload, tiling = CASES[case]
    func, blocks, others = stored(workload, tiling)
    rng = np.random.default_rng(0)
    out = workload.args[-1]
    names = [str(param.name) for param in workload.func.params]
    extents = [n for n in out.shape if n > 1]
    if len(tiling.rows) == 1:
        extents = [int(np.prod(out.shape[:-1])), out.shape[-1]]
    total = rng.standard_normal(extents)
    arrays = {"sums": fragments(tiles_of(total, tiling), tiling)}
    wanted = total.reshape(out.shape)
    for i in others:
        arrays[names[i]] = rng.standard_normal(workload.args[i].shape).astype(workload.args[i].dtype)
        wanted = wanted + arrays[names[i]]
    whole = np.full(np.prod(out.shape) + 2 * _GUARD, -7, out.dtype)
    arrays[names[-1]] = whole[_GUARD:]
    cuda_on_cpu.launch(source(func), "main_kernel", arrays, blocks, 128 * tiling.consumers, tmp_path)
    assert (whole[:_GUARD] == -7).all()
    assert (whole[-_GUARD:] == -7).all()
    np.testing.assert_allclose(whole[_GUARD:-_GUARD].reshape(out.shape), np.maximum(wanted, 0), rtol=2e-3, atol=2e-3)


def bytes_with_residual(m: int, n: int, k: int) -> Workload:
    """Requantised, then added to other bytes and quantised once more."""

    def body(emit: Any, x: Any, other: Any, w: Any, b: Any, f: Any) -> Any:
        acc = emit(op.add(emit(op.matmul(x, w, "int32")), b))
        real = emit(op.multiply(emit(op.astype(acc, "float32")), f))
        one, half, quarter = (relax.const(scale, "float32") for scale in (1.0, 0.5, 0.25))
        zero = {z: relax.const(z, "uint8") for z in (0, 3, 100, 120)}
        q = emit(op.quantize(real, one, zero[100], axis=0, out_dtype="uint8"))
        left = emit(op.dequantize(q, half, zero[100], axis=0))
        right = emit(op.dequantize(other, quarter, zero[120], axis=0))
        return op.quantize(emit(op.add(left, right)), one, zero[3], axis=0, out_dtype="uint8")

    constants = [np.ones((k, n), "int8"), np.ones(n, "int32"), np.ones(n, "float32")]
    inputs = [((m, k), "uint8"), ((m, n), "uint8")]
    return workload_of(body, inputs, [relax.const(array) for array in constants])


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("way", ["exchanged", "exchanged, 16 columns", "swapped", "in place", "in place, 128 columns"])
def test_a_residual_of_bytes_is_added_to_bytes(way: str, tmp_path: Path) -> None:
    """Behind their exchange, or where a thread has neighbours of a row."""
    columns = int((re.findall(r"\d+", way) or [64])[0])
    workload = bytes_with_residual(200, columns, 64)
    tiling = Tiling((128,), columns, 2, 2, True, swapped=way == "swapped")
    is_in_place = way.startswith("in place")
    func, blocks, others = stored(workload, tiling, is_in_place)
    text = source(func)
    assert "__byte_perm" in text
    if is_in_place:
        assert "staged" not in text
        assert len(re.findall(r"\*\(uint4\*\)\(\w*quantize\w*_ptr \+ [^;]*\) = ", text)) == columns // 16
    rng = np.random.default_rng(0)
    total = rng.integers(-3000, 3000, (200, columns))
    multiplied = neighbouring(total, 1) if is_in_place else total
    arrays = {"sums": fragments(tiles_of(multiplied, tiling), tiling).view("uint32")}
    values = {
        "uint8": lambda shape: rng.integers(0, 256, shape), "int32": lambda shape: rng.integers(-500, 500, shape),
        "float32": lambda shape: 0.05 + 0.1 * rng.random(shape),
    }  # fmt: skip
    scalars = iter([0.25, 120, 100, 0.5, 3])  # scale and zero point of the residual, and the others in their order
    found = {}
    for i in others:
        arg = workload.args[i]
        if not arg.shape:
            arrays[str(workload.func.params[i].name)] = np.array([next(scalars)], arg.dtype)
            continue
        found[arg.dtype] = values[arg.dtype](arg.shape).astype(arg.dtype)
        arrays[str(workload.func.params[i].name)] = found[arg.dtype]
    q = np.clip(np.rint((total + found["int32"]).astype("float32") * found["float32"]) + 100, 0, 255)
    both = (q - 100) * 0.5 + (found["uint8"].astype("float32") - 120) * 0.25
    wanted = np.clip(np.rint(both) + 3, 0, 255).astype("uint8")
    whole = np.full(200 * columns + 2 * _GUARD, 77, "uint8")
    arrays[str(workload.func.params[-1].name)] = whole[_GUARD:]
    cuda_on_cpu.launch(text, "main_kernel", arrays, blocks, 128 * tiling.consumers, tmp_path)
    np.testing.assert_array_equal(whole[_GUARD:-_GUARD].reshape(200, columns), wanted)
    assert {*whole[:_GUARD], *whole[-_GUARD:]} == {77}


def with_table(m: int, n: int, k: int) -> Workload:
    """Requantised, and then looked up: what is loaded is of a sum, not of its column."""

    def body(emit: Any, x: Any, w: Any, b: Any, f: Any, table: Any) -> Any:
        acc = emit(op.add(emit(op.matmul(x, w, "int32")), b))
        real = emit(op.multiply(emit(op.astype(acc, "float32")), f))
        one, zero = relax.const(1.0, "float32"), relax.const(100, "uint8")
        q = emit(op.quantize(real, one, zero, axis=0, out_dtype="uint8"))
        return op.take(table, q, axis=0, mode="clip")

    constants = [np.ones((k, n), "int8"), np.ones(n, "int32"), np.ones(n, "float32"), np.ones(256, "uint8")]
    return workload_of(body, [((m, k), "uint8")], [relax.const(array) for array in constants])


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("in_place", [False, True])
def test_bytes_are_looked_up(in_place: bool, tmp_path: Path) -> None:
    workload, tiling = with_table(200, 64, 64), Tiling((128,), 64, 2, 2, True)
    func, blocks, others = stored(workload, tiling, in_place)
    rng = np.random.default_rng(0)
    total = rng.integers(-3000, 3000, (200, 64))
    multiplied = neighbouring(total, 1) if in_place else total
    arrays = {"sums": fragments(tiles_of(multiplied, tiling), tiling).view("uint32")}
    values = {
        "uint8": lambda _: rng.permutation(256), "int32": lambda shape: rng.integers(-500, 500, shape),
        "float32": lambda shape: 0.05 + 0.1 * rng.random(shape),
    }  # fmt: skip
    found = {}
    for i in others:
        arg = workload.args[i]
        made = values[arg.dtype](arg.shape) if arg.shape else np.array([100])
        arrays[str(workload.func.params[i].name)] = made.astype(arg.dtype)
        found[arg.dtype if arg.shape else "zero"] = made.astype(arg.dtype)
    q = np.clip(np.rint((total + found["int32"]).astype("float32") * found["float32"]) + 100, 0, 255)
    out = np.zeros((200, 64), "uint8")
    arrays[str(workload.func.params[-1].name)] = out
    cuda_on_cpu.launch(source(func), "main_kernel", arrays, blocks, 128 * tiling.consumers, tmp_path)
    np.testing.assert_array_equal(out, found["uint8"][q.astype(int)])
