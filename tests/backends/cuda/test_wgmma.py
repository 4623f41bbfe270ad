"""The Hopper templates without a GPU: how contractions are seen, what epilogues become, and that kernels build."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.relax import op
from tvm.s_tir import Schedule

from subtune import backends
from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.driver import driver_device
from subtune.backends.cuda.families import stem, wgmma
from subtune.backends.cuda.families.stem.plan import Front, front
from subtune.backends.cuda.families.stem.shape import Stem, StemPacking, row_of
from subtune.backends.cuda.families.wgmma.candidates import predict
from subtune.backends.cuda.families.wgmma.epilogue import epilogue_of, split
from subtune.backends.cuda.families.wgmma.source import padded_param, source_of
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.backends.cuda.families.wgmma.tma import tensor_map
from subtune.backends.cuda.lowering.pipeline import register
from subtune.backends.cuda.lowering.tirx_pipeline import TIRX_ATTR, lower_by_kind
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.measure.guarded import numpy_dtype
from subtune.patterns.contraction import contraction
from subtune.patterns.gemm_view import GemmView, gemm_view, packed_order
from subtune.patterns.recognise import recognise
from subtune.patterns.stages import inline
from subtune.tir.rebuild import Rebuild
from tests.backends import workloads
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.proposals import allowing, proposed, tile_of
from tests.backends.cuda.wgmma_workloads import attention, conv, dense, product, quantised, split_heads, strided
from tests.plain_tvm import compiled

H200 = CUDA("H200")
HERE = driver_device()


def recognised(workload):
    sch = Schedule(workload.func)
    stages = inline(sch)
    info = contraction(sch, stages.anchors[0])
    return sch, stages, info, gemm_view(info)


@pytest.mark.parametrize(
    ("workload", "rows", "batch", "steps", "inner", "packs"),
    [
        (dense(96, 64, 128), (96,), (), (), 128, True),
        (conv(14, 64, 128, 1), (2 * 14 * 14,), (), (), 64, False),  # a 1x1 convolution is one GEMM
        (conv(14, 64, 128, 1, stride=2), (2, 7, 7), (), (), 64, False),
        (conv(14, 64, 128, 3), (2, 14, 14), (), (3, 3), 64, False),
        (attention(4, 12, 128, 256, 64), (128,), (48,), (), 64, False),
        (attention(4, 12, 128, 256, 64, transposed=True), (128,), (48,), (), 64, False),
    ],
)  # fmt: skip
def test_axes_run_together(workload, rows, batch, steps, inner, packs):
    *_, view = recognised(workload)
    extents = lambda groups: tuple(view.groups[g].extent for g in groups)  # noqa: E731
    assert (extents(view.rows), extents(view.batch), extents(view.steps)) == (rows, batch, steps)
    assert view.extent(view.inner) == inner
    assert view.packs == packs


def test_a_view_reads_what_the_contraction_reads():
    """Walking the dims of both operands as the kernel does gives the workload's own sums."""
    for workload in (conv(6, 8, 16, 3, stride=2), attention(1, 2, 8, 16, 8, transposed=True), dense(8, 16, 8)):
        _, _, info, view = recognised(workload)
        rng = np.random.default_rng(0)
        a, b = (rng.standard_normal(operand.shape) for operand in (info.a, info.b))
        flat_b = Packing(tuple((d,) for d in b.shape), packed_order(info, view))(b) if view.packs else b
        spatial = [g for g, group in enumerate(view.groups) if group.role != "k"]
        out = np.zeros([view.groups[g].extent for g in spatial])
        for at in np.ndindex(*(group.extent for group in view.groups)):
            value = 1.0
            for dims, array in ((view.a, a), (view.b, flat_b)):
                offset = 0
                for dim in dims:
                    index = (at[dim.group] * dim.scale if dim.group >= 0 else 0) + (
                        at[dim.window] * dim.dilation if dim.window >= 0 else 0
                    )
                    assert index < dim.extent
                    offset += index * dim.stride
                value *= array.ravel()[offset]
            out[tuple(at[g] for g in spatial)] += value
        assert out.ravel() == pytest.approx(sums(info, a, b).ravel())


def sums(info, a, b):
    """The contraction in numpy, element by element, over its spatial axes in their order."""
    spatial = [axis for axis in info.axes if axis.role != "k"]
    out = np.zeros([axis.extent for axis in spatial])

    def index(operand, at):
        return tuple(
            at[axis] if axis >= 0 else at[w[0]] * w[1] + at[w[2]] * w[3] if w else 0
            for axis, w in zip(operand.axes, operand.windows, strict=True)
        )

    for at in np.ndindex(*(axis.extent for axis in info.axes)):
        out[tuple(at[axis.index] for axis in spatial)] += a[index(info.a, at)] * b[index(info.b, at)]
    return out.reshape([axis.extent for axis in spatial if axis.extent > 1])


def interpreted(workload):
    """The epilogue on the CPU: (sums, other arguments...) -> output, split as the kernel splits it."""
    sch, stages, info, view = recognised(workload)
    epilogue = epilogue_of(sch, stages, info)
    assert not isinstance(epilogue, NotApplicable), epilogue.reason
    rows = {epilogue.axes[axis] for g in view.rows for axis in view.groups[g].axes}
    first = split(epilogue.value, epilogue.acc, rows)
    spatial = [axis for axis in info.axes if axis.role != "k"]
    dtype = "int32" if info.acc_dtype == "int32" else "float32"
    total = tirx.decl_buffer([axis.extent for axis in spatial], dtype, "total")
    loops = {axis.index: tirx.Var(f"i{axis.index}", "int32") for axis in spatial}
    env = {var: loops.get(axis, tirx.const(0, "int32")) for axis, var in enumerate(epilogue.axes)}
    acc = tirx.BufferLoad(total, [loops[axis.index] for axis in spatial])
    staged = Rebuild(env, {epilogue.acc: acc})(first).astype(str(first.ty.dtype))
    wide = staged.astype("float32") if str(first.ty.dtype) in ("float16", "bfloat16") else staged
    value = Rebuild(env, {first: wide})(epilogue.value).astype(epilogue.dtype)
    body = tirx.BufferStore(epilogue.out, value, [Rebuild(env)(i) for i in epilogue.indices])
    for axis in reversed(spatial):
        body = tirx.For(loops[axis.index], 0, axis.extent, tirx.ForKind.SERIAL, body)
    others = [p for i, p in enumerate(sch.mod["main"].params) if i not in (info.a.param, info.b.param)]
    if info.a.param < 0:
        others = [p for p in others if not p.same_as(sch.mod["main"].params[source_of(sch, stages, info)[0]])]
    func = tirx.PrimFunc([total, *others], body).with_attr({"global_symbol": "main", "tirx.noalias": True})
    return compiled(func)["main"], info, str(first.ty.dtype)


@pytest.mark.parametrize(
    ("workload", "expected", "staged"),
    [
        (dense(6, 16, 8), lambda s, b: np.maximum(s + b, 0), "float16"),
        (dense(6, 16, 8, residual=True), lambda s, b, r: np.maximum(s + b + r, 0), "float16"),
        (dense(6, 16, 8, residual=True, act="silu"), lambda s, b, r: (t := s + b + r) / (1 + np.exp(-t)), "float16"),
        (dense(6, 16, 8, residual=True, sum_dtype="float32"), lambda s, b, r: np.maximum(s + b + r, 0), "float32"),
        (conv(6, 8, 16, 3), lambda s, b, r: np.maximum(s + b + r, 0), "float16"),
        (split_heads(2, 6, 4, 4, 8), lambda s, b: (s + b).reshape(2, 6, 4, 4).transpose(0, 2, 1, 3), "float16"),
    ],
)  # fmt: skip
def test_the_epilogue_is_that_of_the_tir(workload, expected, staged):
    run, info, dtype = interpreted(workload)
    assert dtype == staged
    rng = np.random.default_rng(0)
    total = rng.standard_normal([axis.extent for axis in info.axes if axis.role != "k"]).astype("float32")
    read = (source_of(*recognised(workload)[:3])[0], info.b.param)
    others = [rng.standard_normal(a.shape).astype(a.dtype) for i, a in enumerate(workload.args[:-1]) if i not in read]
    out = tvm.runtime.tensor(np.zeros(workload.args[-1].shape, workload.args[-1].dtype))
    run(tvm.runtime.tensor(total), *map(tvm.runtime.tensor, others), out)
    wanted = expected(total, *(other.astype("float32") for other in others))
    np.testing.assert_allclose(out.numpy().astype("float32"), wanted.reshape(out.shape), rtol=2e-3, atol=2e-3)


def test_integer_results_are_requantised():
    run, info, dtype = interpreted(quantised(16, 32, 64))
    assert (dtype, info.acc_dtype) == ("int8", "int32")
    total = np.random.default_rng(0).integers(-30000, 30000, (16, 32)).astype("int32")
    out = tvm.runtime.tensor(np.zeros((16, 32), "int8"))
    run(tvm.runtime.tensor(total), tvm.runtime.tensor(np.float32(0.01)), out)
    wanted = np.clip(np.round(total.astype("float32") * np.float32(0.01)), -128, 127)
    np.testing.assert_array_equal(out.numpy(), wanted.astype("int8"))


def test_a_padding_is_seen_through():
    sch, stages, info, view = recognised(conv(14, 64, 128, 3))
    assert source_of(sch, stages, info) == (0, (2, 14, 14, 64), (0, 1, 1, 0))
    block = sch.get(stages.producers[0])
    assert padded_param(block, list(sch.mod["main"].params)) == (0, (2, 14, 14, 64), (0, 1, 1, 0))
    found = tensor_map(
        view.a, (2, 14, 14, 64), (0, 1, 1, 0), "float16", {0: 2, 1: 8, 2: 8, view.inner: 64}, view.inner, 128
    )
    assert found.arguments[:4] == (64, 14, 14, 2)
    assert found.arguments[4:7] == (64 * 2, 14 * 64 * 2, 14 * 14 * 64 * 2)  # strides of the operand, not of the padding
    assert found.arguments[7:11] == (64, 8, 8, 2)  # the box
    at = dict.fromkeys(range(len(view.groups)), 0)
    assert found.coordinates({**at, 1: 8, view.steps[0]: 2}) == [0, -1, 9, 0]


CHECKED = {
    "taken in turn": (conv(14, 64, 64, 3, batch=3), Tiling((4, 8, 8), 64, 5, 2, True, swapped=True), "f16"),
    "no residual": (conv(14, 64, 64, 3, batch=9, residual=False),
                    Tiling((4, 8, 8), 64, 5, 2, True, swapped=True), "f16"),
    "a cluster": (conv(28, 64, 64, 3, batch=4),
                  Tiling((4, 8, 8), 64, 5, 2, True, cluster=2, raster=8, swapped=True), "f16"),
    "columns of each": (conv(7, 128, 128, 3, batch=5), Tiling((4, 8, 8), 128, 4, 2, swapped=True), "f16"),
    "one image": (conv(14, 64, 64, 3, batch=1), Tiling((16, 16), 64, 4, 1, swapped=True), "f16"),
    "columns beyond": (dense(1000, 32, 200), Tiling((256,), 64, 4, 2, True, swapped=True), "f16"),
    "no multiple of 64": (dense(1000, 96, 136, residual=True, act="gelu"),
                          Tiling((224,), 128, 4, 2, swapped=True), "f16"),
    "bfloat16": (dense(777, 128, 520, residual=True, dtype="bfloat16"),
                 Tiling((192,), 128, 4, 2, swapped=True), "bf16"),
    "stored as float32": (dense(3000, 64, 128, residual=True, sum_dtype="float32"),
                          Tiling((256,), 64, 4, 2, True, swapped=True), "f16"),
    "two on a multiprocessor": (conv(14, 64, 64, 1, batch=70), Tiling((128,), 64, 3, 1, False, 2, swapped=True), "f16"),
    "across k": (attention(2, 3, 500, 64, 200), Tiling((256,), 64, 3, 2, True, swapped=True), "f16"),
    "short rows": (conv(14, 32, 64, 3, batch=3), Tiling((4, 8, 8), 64, 8, 2, True, row_bytes=64, swapped=True), "f16"),
    "taps": (conv(56, 64, 64, 3, batch=3), Tiling((1, 28, 8), 64, 3, 2, True, swapped=True, taps=3), "f16"),
    "taps, of one image": (conv(30, 64, 64, 3, batch=1), Tiling((16, 16), 64, 3, 1, swapped=True, taps=3), "f16"),
    "taps, in a cluster": (conv(28, 64, 64, 3, batch=4),
                           Tiling((1, 28, 8), 64, 3, 2, True, cluster=2, raster=8, swapped=True, taps=3), "f16"),
    "taps, columns of each": (conv(14, 64, 128, 3, batch=3),
                              Tiling((1, 14, 16), 128, 2, 2, swapped=True, taps=3), "f16"),
    "taps, 5": (conv(16, 32, 40, 5, batch=2),
                Tiling((1, 16, 8), 64, 3, 2, True, row_bytes=64, swapped=True, taps=5), "f16"),
    "resident": (conv(28, 64, 64, 3, batch=150), Tiling((4, 8, 8), 64, 4, 2, True, swapped=True, resident=9), "f16"),
    "resident, taps": (conv(56, 64, 64, 3, batch=48),
                       Tiling((1, 28, 8), 64, 4, 2, True, swapped=True, taps=3, resident=3), "f16"),
    "resident, for both": (dense(60000, 128, 128), Tiling((256,), 128, 4, 2, swapped=True, resident=2), "f16"),
    "resident, in a cluster": (conv(28, 64, 64, 3, batch=150),
                               Tiling((4, 8, 8), 64, 4, 2, True, cluster=2, swapped=True, resident=9), "f16"),
    "taps, rows": (conv(14, 64, 128, 3, batch=5), Tiling((2, 8, 8), 128, 3, 2, True, taps=3), "f16"),
    "taps, rows of each": (conv(16, 128, 96, 3, batch=3), Tiling((2, 16, 8), 96, 2, 2, taps=3), "f16"),
    "taps, images of each": (conv(8, 64, 64, 3, batch=7), Tiling((3, 8, 8), 64, 3, 3, taps=3), "f16"),
}  # fmt: skip
SHAPES = [dense(1024, 1024, 1024), dense(100, 72, 136), conv(56, 64, 64, 3, batch=8), conv(28, 128, 256, 3, stride=2),
          attention(4, 12, 512, 512, 64), attention(2, 2, 128, 64, 512), quantised(512, 512, 512)]  # fmt: skip


@pytest.mark.parametrize(("padding", "before"), [((1, 0), 1), ((0, 1), 0), ((2, 1), 2)])
def test_a_padding_of_one_side_is_seen_through(padding, before):
    """It asks for both sides all the same: a transposed convolution's phases, and causal ones."""

    def body(emit, x, w):
        layouts = {"data_layout": "NWC", "kernel_layout": "OWI", "out_layout": "NWC"}
        return op.nn.conv1d(x, w, padding=padding, out_dtype="float32", **layouts)

    sch, stages, *_ = recognised(workloads.build(body, [(2, 24, 64)], [(32, 2, 64)], dtype="float16"))
    (producer,) = stages.producers
    assert padded_param(sch.get(producer), list(sch.mod["main"].params)) == (0, (2, 24, 64), (0, before, 0))


@pytest.mark.parametrize("workload", SHAPES, ids=str)
def test_candidates_fit_the_device(workload):
    anchor = recognise(workload)
    found = proposed(wgmma.FAMILY, workload, H200)
    assert found
    assert len(set(found)) == len(found)
    view = gemm_view(anchor)
    for candidate in found:
        tiling = tile_of(candidate)
        assert tiling.knobs() == dict(candidate.knobs)
        assert tiling.obstacle("float32", H200.shared_per_block_bytes, H200.shared_per_sm_bytes) == ""
        assert tiling.threads * tiling.blocks_per_sm <= H200.max_threads_per_sm
        assert len(tiling.rows) == len(view.rows)
        assert candidate.predicted_s > workload.flops / H200.mma_flops(anchor.a.dtype)
    assert proposed(wgmma.FAMILY, workload, CUDA("A100")) == []
    assert proposed(wgmma.FAMILY, workload, replace(H200, arch="sm_90")) == []
    assert proposed(wgmma.FAMILY, workload, allowing(H200, tensor_core="off")) == []


def test_what_tensor_maps_cannot_walk_is_left_alone():
    for workload in (dense(64, 64, 100), dense(64, 64, 64, dtype="float32"), strided(64, 64, 64)):
        assert proposed(wgmma.FAMILY, workload, H200) == []
        candidate = Candidate.make("cuda.wgmma", **Tiling((64,), 64, 4, 1).knobs())
        assert isinstance(backends.schedule(workload, candidate, H200), NotApplicable)
    tf32 = dense(64, 64, 64, dtype="float32")
    assert proposed(wgmma.FAMILY, tf32, allowing(H200, tf32=True))


def test_tiles_that_do_not_fit_are_refused():
    workload = dense(512, 512, 512)
    for tiling in (Tiling((100,), 64, 4), Tiling((128,), 40, 4), Tiling((256,), 256, 4), Tiling((128,), 256, 8),
                   Tiling((2, 64), 64, 4), Tiling((256,), 128, 2, 1, blocks_per_sm=2)):  # fmt: skip
        found = backends.schedule(workload, Candidate.make("cuda.wgmma", **tiling.knobs()), H200)
        assert isinstance(found, NotApplicable)
        assert found.reason


def source(func):
    """CUDA source of a kernel, built beside a schedule of TIR."""
    from tvm.s_tir.pipeline import default_s_tir_pipeline
    from tvm.tirx.compilation_pipeline import register_tir_pipeline

    lower, host, device = default_s_tir_pipeline()

    @tvm.transform.module_pass(opt_level=0)
    def by_kind(mod, _context):
        return lower_by_kind(mod, lower)

    register_tir_pipeline("subtune_tirx_test", lambda: (by_kind, host, device))
    other = backends.schedule(dense(8, 16, 8), Candidate("default"), H200).func.with_attr("global_symbol", "other")
    mod = tvm.IRModule({"main": func, "other": other})
    text = tvm.compile(mod, H200.target(), tir_pipeline="subtune_tirx_test").mod.imports[0].inspect_source()
    assert "other_kernel" in text
    return text


BUILT = [
    (dense(1024, 1024, 1024), Tiling((128,), 256, 4, raster=8), "m64n256k16.f32.f16"),
    (dense(1000, 1001, 520, residual=True), Tiling((128,), 128, 4, 2, True), "m64n128k16.f32.f16"),
    (dense(256, 256, 256, act="gelu", dtype="bfloat16"), Tiling((64,), 96, 4, 1), "m64n96k16.f32.bf16"),
    (conv(28, 128, 128, 3, batch=8), Tiling((8, 4, 4), 128, 4), "m64n128k16.f32.f16"),
    (conv(28, 64, 128, 1, stride=2), Tiling((2, 8, 8), 64, 4, 1, False, 2), "m64n64k16.f32.f16"),
    (attention(2, 12, 512, 512, 64), Tiling((128,), 128, 2), "m64n128k16.f32.f16"),
    (split_heads(2, 128, 12, 64, 768), Tiling((64,), 64, 4, 1), "m64n64k16.f32.f16"),
    (quantised(512, 512, 512), Tiling((128,), 128, 4), "m64n128k32.s32.s8.s8"),
    (product(512, 512, 512, "float8_e4m3fn"), Tiling((128,), 128, 4, promote=True), "m64n128k32.f32.e4m3.e4m3"),
    (product(512, 512, 512, "float32"), Tiling((128,), 128, 4), "m64n128k8.f32.tf32.tf32"),
    (dense(1000, 1000, 1000), Tiling((64,), 128, 6, 1, cluster=2), "m64n128k16.f32.f16"),
    (attention(2, 12, 512, 512, 64), Tiling((128,), 256, 2, cluster=2), "m64n256k16.f32.f16"),
    (dense(64, 1024, 8192, act="gelu"), Tiling((64,), 128, 6, 1, split=8), "m64n128k16.f32.f16"),
    (quantised(128, 512, 4096), Tiling((128,), 128, 4, split=4), "m64n128k32.s32.s8.s8"),
    (conv(7, 512, 512, 3, batch=128), Tiling((64, 1, 1), 128, 4, 3, boxes=3), "m64n128k16.f32.f16"),
    (dense(4096, 96, 16), Tiling((128,), 96, 8, row_bytes=32), "m64n96k16.f32.f16"),
    (conv(28, 32, 64, 3, batch=8), Tiling((8, 4, 4), 64, 8, row_bytes=64), "m64n64k16.f32.f16"),
    *((workload, tiling, f"m64n{tiling.multiplied[1]}k16.f32.{name}") for workload, tiling, name in CHECKED.values()),
]  # fmt: skip


@pytest.mark.parametrize(("workload", "tiling", "instruction"), BUILT, ids=str)
@pytest.mark.grid
def test_kernels_build_for_hopper(workload, tiling, instruction):
    device = allowing(H200, tf32=True)
    kernel = backends.schedule(workload, Candidate.make("cuda.wgmma", **tiling.knobs()), device)
    assert isinstance(kernel, Kernel), kernel
    for i, (param, arg) in enumerate(zip(kernel.func.params, workload.args, strict=True)):
        packed = dict(kernel.packings).get(i)
        assert tuple(int(d) for d in param.shape) == (packed.shape if packed else arg.shape)
        assert str(param.dtype) == arg.dtype
    assert kernel.func.attrs[TIRX_ATTR] == 1
    assert kernel.func.attrs["tirx.is_scheduled"] == 1
    text = source(kernel.func)
    assert f"wgmma.mma_async.sync.aligned.{instruction}" in text
    assert "cp.async.bulk.tensor" in text


def kernel_source(workload, tiling):
    kernel = backends.schedule(workload, Candidate.make("cuda.wgmma", **tiling.knobs()), H200)
    assert isinstance(kernel, Kernel), kernel
    return source(kernel.func)


def test_blocks_of_a_cluster_share_copies():
    """Half of B each, for both; slots are freed in both blocks; what one block sends is all that it announces."""
    text = kernel_source(dense(1024, 1024, 1024), Tiling((128,), 256, 4, cluster=2))
    assert ".multicast::cluster" in text
    assert "mbarrier.arrive.shared::cluster.b64" in text
    assert f"(uint){(128 + 256) * 128})" in text
    plain = kernel_source(dense(1024, 1024, 1024), Tiling((128,), 256, 4))
    assert "cluster_ctarank" not in plain


def test_sums_of_float8_are_promoted_step_by_step():
    """A step's sum begins anew, and is added in float32 to those before it."""
    workload = product(512, 512, 4096, "float8_e4m3fn")
    text = kernel_source(workload, Tiling((128,), 128, 4, promote=True))
    assert "wait_group_sync_aligned_1()" not in text
    assert len(re.findall(r"(sums_ptr\[\d+\]) = \(\1 \+ _ptr\[\d+\]\);", text)) == 64
    candidates = proposed(wgmma.FAMILY, workload, H200)
    assert candidates
    assert all(candidate["promote"] for candidate in candidates)
    assert all(tile_of(candidate).promote for candidate in candidates)


def test_parts_of_a_sum_meet_in_shared_memory():
    text = kernel_source(dense(64, 1024, 8192), Tiling((64,), 128, 6, 1, split=8))
    assert text.count("barrier.cluster.arrive.release") == 1  # one function, called by all
    assert "for (int local = 0; local < 16; ++local)" in text  # 128 steps in 8 parts
    assert "ring_of_7" in text
    for k, parts in ((64, 2), (520, 8)):  # steps of k: 1 and 9, a part would be empty
        tiling = Tiling((64,), 64, 6, 1, split=parts)
        found = backends.schedule(dense(64, 64, k), Candidate.make("cuda.wgmma", **tiling.knobs()), H200)
        assert isinstance(found, NotApplicable)


def test_columns_operands_are_fetched_once():
    """The bias is read before the tile is multiplied, not between its stores."""
    text = kernel_source(dense(1024, 1024, 1024), Tiling((128,), 256, 4))
    (bias,) = set(re.findall(r"\bp2_ptr\[", text))
    assert text.count(bias) == 2  # 256 columns, 128 threads
    assert text.rindex(bias) < text.index("wait_group_wait_group_sync_aligned_0();")


def test_boxes_need_not_be_neighbours():
    """Three boxes of 64 images at one pixel each: 7x7 pixels of 128 images are 33 tiles of 192 rows."""
    text = kernel_source(conv(7, 512, 512, 3, batch=128), Tiling((64, 1, 1), 128, 4, 3, boxes=3))
    assert "< 132))" in text  # 33 times 4 of columns
    assert len(re.findall(r"bulk_tensor_4d\w*\(tvm_builtin_cuda_cvta", text)) == 5  # A three times, B twice


def test_candidates_for_few_tiles_and_for_rows_that_straddle():
    def knobs(workload):
        return [dict(c.knobs) for c in proposed(wgmma.FAMILY, workload, H200)]

    assert {k.get("split", 1) for k in knobs(dense(64, 1024, 8192))} == {1, 2, 4, 8}
    assert {k.get("split", 1) for k in knobs(dense(4096, 4096, 4096))} == {1}
    assert any(k.get("cluster") == 2 for k in knobs(dense(1000, 1000, 1000)))
    assert not any("cluster" in k for k in knobs(dense(1024, 1024, 1024)))
    assert any(k.get("boxes") == 3 for k in knobs(conv(7, 512, 512, 3, batch=128)))


def test_wide_accesses():
    """Residuals and results go 16 bytes at a time."""
    workload = conv(28, 128, 128, 3, batch=8)
    kernel = backends.schedule(workload, Candidate.make("cuda.wgmma", **Tiling((8, 4, 4), 128, 4).knobs()), H200)
    text = source(kernel.func)
    assert "make_uint4(" not in text  # gathered element by element
    assert text.count("*(uint4*)(p3_ptr +") == text.count("*(uint4*)(compute_intermediate_ptr +") > 0


def test_rows_of_a_stage_are_as_long_as_fits_k():
    def widths(k):
        return {dict(c.knobs).get("row_bytes", 128) for c in proposed(wgmma.FAMILY, dense(4096, 96, k), H200)}

    assert widths(16) == {128, 64, 32}
    assert widths(24) == widths(32) == widths(96) == {128, 64}
    assert widths(64) == widths(128) == {128}
    assert widths(144) == {128, 64, 32}
    text = kernel_source(dense(4096, 96, 16), Tiling((128,), 96, 8, row_bytes=32))
    assert f"(uint){(128 + 96) * 32})" in text  # no zeros are copied
    assert re.search(r"encode_matrix_descriptor\(.*, 1, 16, 1\)", text)  # 8 rows are 256 bytes, swizzled over 32


def test_residuals_are_loaded_before_the_products_and_for_the_next_tile():
    """All of a tile's before it is multiplied, and those of the block's next tile before this one is done."""
    whole = Tiling((192,), 128, 4, 3)
    one = kernel_source(dense(192, 128, 512, residual=True), whole)
    several = kernel_source(dense(192 * 300, 128, 512, residual=True), whole)
    load = re.compile(r"= \*\(uint4\*\)\(p3_ptr \+")
    multiply = re.search(r"wait_group\w*_aligned_0\(\);", one).start()
    assert [m.start() < multiply for m in load.finditer(one)] == [True] * 8  # of 16 bytes, in 128 threads a consumer
    assert len(load.findall(several)) == 16


@pytest.mark.parametrize(("is_planar", "per_word"), [(False, 2), (True, 2), (False, 4)])
@pytest.mark.parametrize(("kernel", "pad", "channels"), [(7, 3, 3), (3, 1, 3), (3, 0, 2), (5, 2, 4)])
def test_a_stem_reads_its_windows_from_the_patch(is_planar, per_word, kernel, pad, channels):
    """What the fragments read, times the packed weights, is the convolution."""
    rng = np.random.default_rng(0)
    height, width, stride, out_channels = 20, 16, 2, 16
    channels += channels % 2 if per_word == 4 else 0
    x = rng.standard_normal((height, width, channels)).astype("float32")
    w = rng.standard_normal((out_channels, kernel, kernel, channels)).astype("float32")
    out_height, out_width = (height + 2 * pad - kernel) // stride + 1, (width + 2 * pad - kernel) // stride + 1
    planes, c = (channels, 1) if is_planar else (1, channels)
    lead = -pad * c % per_word
    row = row_of(lead + kernel * c, is_planar, per_word)
    stem = Stem(height, width * c // per_word, c, out_height, out_width, (kernel, kernel), stride,
                (pad, (pad * c + lead) // per_word), row, 2, planes, per_word)  # fmt: skip
    packing = StemPacking(w.shape, lead, row, is_planar, per_word)
    packed = packing(w)
    assert packed.shape == packing.shape
    assert stem.pitch % 4 == 0
    assert (stem.before[1] + stem.shift) % 4 == 0  # copies begin at multiples of 16 bytes
    top = 2
    patch = np.zeros((planes, stem.patch_rows, stem.pitch * per_word), "float32")
    image = x.transpose(2, 0, 1) if is_planar else x.reshape(1, height, -1)
    left = (stem.before[1] + stem.shift) * per_word
    for r in range(stem.patch_rows):
        h = top * stride - pad + r
        if 0 <= h < height:
            patch[:, r, left : left + width * c] = image[:, h, : stem.pitch * per_word - left]
    flat = patch.reshape(-1, per_word)  # in words
    padded = np.pad(x, [(pad, pad + stride), (pad, pad), (0, 0)])
    for m in range(stem.rows * out_width):
        window = stem.shift + m // out_width * stride * stem.pitch + m % out_width * (stride * c // per_word)
        places = [stem.word_of(part * stem.at_once) for part in range(stem.steps * 2)]
        words = [None if at is None else window + at + stem.of_thread(four) for at in places for four in range(4)]
        fragment = np.concatenate([np.zeros(per_word) if word is None else flat[word] for word in words])
        h, v = (top + m // out_width) * stride, m % out_width * stride
        wanted = np.einsum("okwc,kwc->o", w, padded[h : h + kernel, v : v + kernel])
        np.testing.assert_allclose(packed[:, : len(fragment)] @ fragment, wanted, rtol=1e-4, atol=1e-4)


def test_a_stem_builds():
    workload = conv(64, 3, 64, 7, stride=2, residual=False)
    found = proposed(stem.FAMILY, workload, H200)
    assert {c.family for c in found} == {"cuda.stem"}
    kernel = backends.schedule(workload, found[0], H200)
    assert isinstance(kernel, Kernel), kernel
    text = source(kernel.func)
    assert "m64n64k16.f32.f16" in text
    assert "tensor_3d" in text  # patches
    odd = conv(127, 2, 64, 7, stride=2, residual=False)
    found = proposed(stem.FAMILY, odd, H200)
    assert found
    text = source(backends.schedule(odd, found[0], H200).func)
    assert "tensor_3d" not in text  # rows of 508 bytes, at which no copy may begin


def test_a_stem_may_have_any_number_of_columns():
    workload = conv(64, 4, 24, 7, stride=1, residual=False)
    found = proposed(stem.FAMILY, workload, H200)
    assert found
    kernel = backends.schedule(workload, found[0], H200)
    assert isinstance(kernel, Kernel), kernel
    ((_, packing),) = kernel.packings
    packed = packing(np.ones((24, 7, 7, 4), "float16"))
    assert packed.shape[0] == 32
    assert packed[:24].any(1).all()
    assert not packed[24:].any()
    assert "& 3) < 3)" in source(kernel.func)  # three vectors of a row are stored, the fourth is nobody's


@pytest.mark.parametrize(("kernel", "stride", "width", "why"), [
    (7, 2, 64, ""), (3, 2, 64, ""), (3, 1, 64, "do not begin with a word"), (3, 2, 60, "does not copy"),
])  # fmt: skip
def test_a_stem_reads_planes(kernel, stride, width, why):
    """An image channels first, where the hardware copies its rows and windows begin at words."""
    workload = conv(64, 3, 64, kernel, stride=stride, residual=False, planar=True, width=width)
    found = proposed(stem.FAMILY, workload, H200)
    read = front(workload, Problem(workload, H200))
    if why:
        assert not found
        assert isinstance(read, NotApplicable)
        assert why in read.reason
        return
    assert isinstance(read, Front), read
    assert (read.stem.planes, read.stem.channels) == (3, 1)
    kernel = backends.schedule(workload, found[0], H200)
    assert isinstance(kernel, Kernel), kernel
    copies = re.findall(r"_tensor_3d\w+\(tvm.*, -2, (.*), tvm", source(kernel.func))
    assert copies
    assert all("* 3)" in copy.rpartition(", ")[2] for copy in copies)  # planes of an image


def test_few_columns_may_be_the_rows_of_a_multiplication():
    """With 64 columns and 256 rows, what is read from shared memory is a half of what 64 rows at a time read."""
    view = gemm_view(recognise(conv(56, 64, 64, 3, batch=128)))
    few = conv(56, 64, 64, 3, batch=128)
    seconds = [
        predict(view, tiling, few, H200, "float16")
        for tiling in (Tiling((4, 8, 8), 64, 5, 2, True), Tiling((4, 8, 8), 64, 5, 2, True, swapped=True))
    ]
    assert seconds[1] < seconds[0]
    found = proposed(wgmma.FAMILY, few, H200)
    assert 0 < sum(tile_of(candidate).swapped for candidate in found) < len(found) / 5
    for workload in (dense(1024, 1024, 1024), quantised(512, 64, 512), product(512, 64, 512, "float8_e4m3fn")):
        assert not any(tile_of(candidate).swapped for candidate in proposed(wgmma.FAMILY, workload, H200))


@pytest.mark.parametrize(
    ("workload", "tiling", "reason"),
    [
        (quantised(512, 64, 512), Tiling((128,), 64, 4, 1, swapped=True), "8 bits"),
        (dense(512, 64, 512), Tiling((128,), 64, 4, 2, swapped=True), "for each of 2 consumers"),
        (dense(512, 64, 512), Tiling((512,), 64, 2, 1, swapped=True), "512 rows"),
        (dense(512, 64, 512), Tiling((128,), 64, 4, 1, split=2, swapped=True), "split"),
    ],
)  # fmt: skip
def test_operands_that_are_not_swapped(workload, tiling, reason):
    found = backends.schedule(workload, Candidate.make("cuda.wgmma", **tiling.knobs()), H200)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str) or HERE.capability != 90, reason=f"no Hopper GPU: {HERE}")
@pytest.mark.parametrize("case", CHECKED)
def test_results_on_a_gpu(case):
    workload, tiling, _ = CHECKED[case]
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(arg.shape).astype(numpy_dtype(arg.dtype)) for arg in workload.args[:-1]]
    (want,) = cuda_on_cpu.reference(workload, inputs)
    kernel = backends.schedule(workload, Candidate.make("cuda.wgmma", **tiling.knobs()), H200)
    assert isinstance(kernel, Kernel), kernel
    with H200.target():
        built = tvm.compile(
            kernel.func.with_attr("global_symbol", "main"), target=H200.target(), tir_pipeline=register()
        )
    packed, device, out = dict(kernel.packings), tvm.cuda(0), workload.args[-1]
    arrays = [tvm.runtime.tensor(packed[i](x) if i in packed else x, device) for i, x in enumerate(inputs)]
    result = tvm.runtime.tensor(np.full(out.shape, np.nan).astype(numpy_dtype(out.dtype)), device)
    for _ in range(3):
        built["main"](*arrays, result)
    limit = 4e-2 if out.dtype == "bfloat16" else 4e-3
    np.testing.assert_allclose(result.numpy().astype("float64"), want, rtol=limit, atol=limit * np.abs(want).max())


def test_taps_share_what_they_read():
    """A stage has a box with the rows of pixels of three taps, and the weights of each."""
    text = kernel_source(conv(56, 64, 64, 3, batch=3), Tiling((1, 28, 8), 64, 3, 2, True, swapped=True, taps=3))
    assert f"(uint){(30 * 8 + 3 * 64) * 128})" in text
    assert "for (int local = 0; local < 3; ++local)" in text
    assert len(re.findall(r"bulk_tensor_4d\w*\(tvm_builtin_cuda_cvta", text)) == 7  # one of A, a tap's of B, and ahead
    for tiling, size, reason in (
        (Tiling((1, 28, 8), 64, 3, 2, True, swapped=True, taps=2), 56, "the window has 3"),
        (Tiling((2, 16, 4), 64, 3, 2, True, taps=3), 56, "rows of 4"),
        (Tiling((2, 8, 8), 64, 3, 2, True, swapped=True, taps=3), 56, "several images"),
    ):
        workload = conv(size, 64, 64, 3, batch=3)
        found = backends.schedule(workload, Candidate.make("cuda.wgmma", **tiling.knobs()), H200)
        assert isinstance(found, NotApplicable)
        assert reason in found.reason
    apart = conv(56, 64, 64, 3, stride=2)
    assert not any(tile_of(candidate).taps > 1 for candidate in proposed(wgmma.FAMILY, apart, H200))


def test_weights_that_stay_are_copied_with_the_first_tile():
    text = kernel_source(*CHECKED["resident, taps"][:2])
    both, rows = (30 * 8 + 9 // 3 * 64) * 128, 30 * 8 * 128
    assert f"? (uint){both} : (uint){rows})" in text
    for tiling, cout in (
        (Tiling((4, 8, 8), 64, 4, 2, True, resident=8), 64),
        (Tiling((2, 8, 8), 64, 4, resident=9), 128),
    ):
        workload = conv(56, 64, cout, 3, batch=3)
        found = backends.schedule(workload, Candidate.make("cuda.wgmma", **tiling.knobs()), H200)
        assert isinstance(found, NotApplicable)
        assert "steps of B stay" in found.reason


def test_views_are_values():
    assert isinstance(recognised(dense(64, 64, 64))[3], GemmView)
    assert recognised(dense(64, 64, 64))[3] == recognised(dense(64, 64, 64))[3]
