"""Models of many shapes compiled and run at every one of them, against ONNX Runtime; what cannot be is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from subtune.artifact import Artifact, load
from subtune.cli.main import main
from subtune.core.errors import InputError, SubtuneError
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from tests.dynamic import models
from tests.whole import IS_WHOLE

Compiled = Callable[..., Artifact]
OTHERS_TEST_IT = pytest.mark.skipif(not IS_WHOLE, reason="takes long; for the whole suite")


@pytest.fixture(scope="module")
def compiled(workers: LocalMeasurer) -> Compiled:
    def compiled(model: onnx.ModelProto, folder: Path, **dynamic: str) -> Artifact:
        path = folder / "m.subtune"
        compile_model(model, path, dynamic=dynamic, tune=False, verify=False, threads=2, measurer=workers)
        return load(path)

    return compiled


def arrays(artifact: Artifact, **values: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(sum(values.values()))
    found = {spec.name: rng.standard_normal(spec.at(values).sizes).astype(np.float32) for spec in artifact.inputs}
    if "mask" in found:
        found["mask"] = np.where(found["mask"] > 1, np.float32(-1e4), np.float32(0))
    return found


def check_everywhere(artifact: Artifact, model: onnx.ModelProto) -> int:
    """How many instances there were."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert artifact.manifest.domain
    count = 0
    for values, _ in artifact.manifest.domain.instances():
        inputs = arrays(artifact, **values)
        outputs = artifact.run(inputs)
        for spec, expected in zip(artifact.outputs, session.run(None, inputs), strict=True):
            assert outputs[spec.name].shape == expected.shape, values
            np.testing.assert_allclose(outputs[spec.name], expected, rtol=1e-4, atol=1e-5, err_msg=str(values))
        count += 1
    return count


@pytest.fixture(scope="module")
def block(compiled: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(models.block(), tmp_path_factory.mktemp("block"), batch="1..3", seq="1..20")


def test_a_transformer_at_every_batch_and_length(block):
    assert [str(spec) for spec in block.outputs] == ["y: float32[batch, seq, 32]", "pooled: float32[batch, 32]"]
    assert check_everywhere(block, models.block()) == 60


@pytest.mark.parametrize(
    ("batch", "seq", "message"),
    [
        (4, 5, "batch is 4, and the model was compiled for batch=1..3"),
        (1, 21, "seq is 21, and the model was compiled for seq=1..20"),
    ],
)
def test_a_run_outside_of_the_domain_is_refused(block, batch, seq, message):
    with pytest.raises(InputError, match=message) as refused:
        block.run(arrays(block, batch=batch, seq=seq))
    assert "\n" not in str(refused.value)


POSITIONS = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64[batch,seq] ids) => (float[batch,seq,4] y, int64[batch,seq] position)
{
    one = Constant<value = int64 {1}>()
    axis = Constant<value = int64 {1}>()
    is_pad = Equal(ids, one)
    is_word = Not(is_pad)
    mask = Cast<to = 6>(is_word)
    sum = CumSum(mask, axis)
    counted = Mul(sum, mask)
    wide = Cast<to = 7>(counted)
    position = Add(wide, one)
    y = Gather(table, position)
}
"""


def test_positions_that_are_counted(compiled, tmp_path):
    """As RoBERTa counts them, in int32: a sum under a triangle, whose stages are of very different sizes."""
    model = onnx.parser.parse_model(POSITIONS)
    model.graph.initializer.append(models.weight("table", 80, 4))
    artifact = compiled(model, tmp_path, batch="1..3", seq="1..70")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for values, _ in artifact.manifest.domain.instances():
        ids = np.random.default_rng(values["seq"]).integers(0, 3, (values["batch"], values["seq"]))
        y, position = session.run(None, {"ids": ids})
        outputs = artifact.run({"ids": ids})
        assert np.array_equal(outputs["position"], position), values
        assert np.array_equal(outputs["y"], y), values


MASKED = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[batch,seq,4] x) => (float[batch,1,seq,seq] y)
{
    zero = Constant<value = int64 {0}>()
    step = Constant<value = int64 {1}>()
    one = Constant<value = int64[1] {1}>()
    wide = Constant<value = int64[3] {0, 1, 3}>()
    nothing = Constant<value = float {0.0}>()
    lowest = Constant<value = float {-3e38}>()
    batch = Shape<start = 0, end = 1>(x)
    seq = Shape<start = 1, end = 2>(x)
    length = Squeeze(seq)
    words = Range(zero, length, step)
    column = Unsqueeze(words, wide)
    is_word = GreaterOrEqual(column, zero)
    whole = Concat<axis = 0>(batch, one, seq, seq)
    is_seen = Expand(is_word, whole)
    mask = Where(is_seen, nothing, lowest)
    turned = Transpose<perm = [0, 2, 1]>(x)
    scores = MatMul(x, turned)
    by_head = Unsqueeze(scores, one)
    masked = Add(by_head, mask)
    y = Softmax<axis = -1>(masked)
}
"""


def test_a_mask_that_is_made_of_the_shape(compiled, tmp_path):
    """As BERT makes it that is given none: small ones are written out, large ones would be computed in every run."""
    model = onnx.parser.parse_model(MASKED)
    assert check_everywhere(compiled(model, tmp_path, batch="1,3,5", seq="2,50,120"), model) == 9


def test_the_symbols_of_a_run_are_known(block):
    assert block.symbols_at(arrays(block, batch=2, seq=5)) == (2, 5)
    with pytest.raises(InputError, match="seq is 21"):
        block.symbols_at(arrays(block, batch=1, seq=21))


def test_shapes_that_disagree_are_refused(block):
    inputs = {"x": arrays(block, batch=2, seq=5)["x"], "mask": arrays(block, batch=2, seq=6)["mask"]}
    with pytest.raises(InputError, match="mask"):
        block.run(inputs)


@pytest.mark.parametrize(
    ("build", "dynamic", "count"),
    [
        (models.convolutions, {"batch": "1..5"}, 5),
        (models.biased, {"batch": "1..2", "seq": "1..9"}, 18),
        (models.view, {"seq": "1..9"}, 9),
        (models.scaled_twice, {"seq": "1,2,9"}, 3),
        (models.view, {"seq": "7"}, 1),
        (models.twins, {"n": "1..3", "m": "1..3"}, 9),
        (models.view, {"seq": "0..3"}, 4),
        pytest.param(models.cached, {"batch": "1..2", "past": "0,1,30,31,40", "seq": "1..5"}, 50, marks=OTHERS_TEST_IT),
        (models.placed, {"past": "0..9", "seq": "1..4"}, 40),
        (models.halves, {"batch": "1", "height": "8..24/8", "width": "16,32"}, 6),
        pytest.param(models.routed, {"tokens": "1..9"}, 9, marks=OTHERS_TEST_IT),
        (models.constants, {"seq": "1..7"}, 7),
        (models.by_columns, {"seq": "1..9"}, 9),
        (models.depthwise, {"width": "1..10"}, 10),
    ],
    ids=[
        "convolutions",
        "biased",
        "view",
        "scaled twice",
        "one instance",
        "equal at the end",
        "nothing",
        "cache",
        "rows of a table",
        "halves",
        "experts",
        "constants",
        "along the reduction",
        "other layout where narrow",
    ],
)
def test_every_instance(build: Callable[[], Any], dynamic, count, compiled, tmp_path):
    model = build()
    assert check_everywhere(compiled(model, tmp_path, **dynamic), model) == count


def test_whole_tiles_at_both_ends_of_a_model(compiled, tmp_path):
    """A layer reads an input and makes an output, behind whose rows is no memory but what is made for it."""
    model = models.layer()
    artifact = compiled(model, tmp_path, seq="1..40")
    ((output, nbytes),) = artifact.manifest.memory.slack
    assert output == 0
    assert nbytes % (64 * 4) == 0, "whole rows"
    assert not artifact.manifest.memory.copies
    assert check_everywhere(artifact, model) == 40
    inputs = arrays(artifact, seq=13)
    out = np.full((20, 64), 7, np.float32)
    artifact.run(inputs, out={"y": out[:13]})
    np.testing.assert_array_equal(out[:13], artifact.run(inputs)["y"])
    assert (out[13:] == 7).all(), "a caller's array has no such memory"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.cut("Mod"), "rounded otherwise"),
        (lambda: models.cut("Min"), "4, 4, 4, 3 is no polynomial of the symbols"),
        (models.scattered, "operators that TVM runs its own way, for one shape alone (relax.scatter_elements)"),
    ],
    ids=["remainder", "least", "operator of TVM"],
)
def test_what_no_one_artifact_computes_is_refused(build, message, tmp_path, capsys):
    """In one sentence, and with nothing written."""
    onnx.save(build(), tmp_path / "m.onnx")
    path = tmp_path / "m.subtune"
    code = main(["compile", str(tmp_path / "m.onnx"), "--dynamic", "seq=4..9", "--no-tune", "-o", str(path)])
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert "Traceback" not in error
    assert not path.exists()


@pytest.mark.parametrize("target", ["cortex-a76", "nvidia/nvidia-h100"])
def test_another_machine_is_refused_before_the_work(target, tmp_path, capsys):
    onnx.save(models.view(), tmp_path / "m.onnx")
    flags = ["--dynamic", "seq=4..9", "--no-tune", "--target", target, "-o", str(tmp_path / "m.subtune")]
    assert main(["compile", str(tmp_path / "m.onnx"), *flags]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert "kernels are timed" in error
    assert "no schedule" not in error


def test_as_many_kernels_as_were_allowed(workers, tmp_path):
    model, dynamic = models.layer(), {"seq": "1..4"}  # three kernels serve it best
    report = compile_model(
        model, tmp_path / "m.subtune", dynamic=dynamic, topk=2, max_kernels=1, verify=False, threads=1, measurer=workers
    )
    assert {len(row.kernels) for row in report.dynamic} == {1}
    assert "worst regret" in str(report)
    with pytest.raises(SubtuneError, match="give a share from 0 on"):
        compile_model(model, tmp_path / "n.subtune", dynamic=dynamic, regret=-1.0)
