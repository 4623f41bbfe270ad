"""Weights in side files, and models beyond protobuf's 2 GB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, numpy_helper

from subtune.core.errors import ModelError
from subtune.frontends import load

ROWS = 64


def big_matmul() -> onnx.ModelProto:
    """One 16 KB weight, one small bias."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 13]> g (float[1,{ROWS}] x) => (float[1,{ROWS}] y)'
        "{ h = MatMul(x, w)\n y = Add(h, b) }"
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (ROWS, ROWS)), ("b", (ROWS,))):
        model.graph.initializer.append(numpy_helper.from_array(rng.random(shape, dtype="float32"), name))
    return model


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save_model(big_matmul(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert path.stat().st_size < 1000
    return path


def entry(tensor: TensorProto, key: str, value: str) -> None:
    found = [e for e in tensor.external_data if e.key == key]
    (found[0] if found else tensor.external_data.add(key=key)).value = value


def edit(path: Path, key: str, value: str, tensor: int = 0) -> None:
    model = onnx.load(path, load_external_data=False)
    entry(model.graph.initializer[tensor], key, value)
    path.write_bytes(model.SerializeToString())


def test_same_module_as_without_side_files(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = load(big_matmul()).mod
    tvm.ir.assert_structural_equal(load(saved).mod, inside, map_free_vars=True)
    monkeypatch.chdir(saved.parent)
    tvm.ir.assert_structural_equal(load("model.onnx").mod, inside)


def test_one_file_per_tensor_in_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(big_matmul(), path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    (tmp_path / "data").mkdir()
    for index, name in enumerate("wb"):
        (tmp_path / name).rename(tmp_path / "data" / name)
        edit(path, "location", f"data/{name}", index)
    tvm.ir.assert_structural_equal(load(path).mod, load(big_matmul()).mod)


def test_constants_in_side_files(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[2] x) => (float[2] y) { y = Add(x, c) }'
    )
    value = numpy_helper.from_array(np.array([3, 4], "float32"))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], value=value))
    inside = load(model).mod
    path = tmp_path / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, size_threshold=0, convert_attribute=True, location="c")
    tvm.ir.assert_structural_equal(load(path).mod, inside)


def test_missing_side_file(saved: Path) -> None:
    (saved.parent / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"'[wb]'.*'weights.bin', which is not there"):
        load(saved)


def test_short_side_file(saved: Path) -> None:
    side = saved.parent / "weights.bin"
    side.write_bytes(side.read_bytes()[: ROWS * ROWS])
    with pytest.raises(ModelError, match=r"'w'.*too short: \d+ bytes are needed, it has 4096"):
        load(saved)


def test_side_file_is_a_directory(saved: Path) -> None:
    (saved.parent / "weights.bin").unlink()
    (saved.parent / "weights.bin").mkdir()
    with pytest.raises(ModelError, match="not a regular file"):
        load(saved)


@pytest.mark.parametrize("location", ["../weights.bin", "a/../../weights.bin", "/etc/hostname"])
def test_paths_out_of_the_directory_are_refused(saved: Path, location: str) -> None:
    edit(saved, "location", location)
    with pytest.raises(ModelError, match="outside of the model's directory"):
        load(saved)


def test_links_out_of_the_directory_are_refused(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "weights.bin"
    (saved.parent / "weights.bin").rename(elsewhere)
    (saved.parent / "weights.bin").symlink_to(elsewhere)
    with pytest.raises(ModelError, match="link out of the model's directory"):
        load(saved)


def test_a_store_that_both_files_link_into_is_fine(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As download caches lay models out: names that link to blobs."""
    snapshot = tmp_path_factory.mktemp("snapshot")
    (snapshot / "model.onnx").symlink_to(saved)
    (snapshot / "weights.bin").symlink_to(saved.parent / "weights.bin")
    tvm.ir.assert_structural_equal(load(snapshot / "model.onnx").mod, load(big_matmul()).mod)


@pytest.mark.parametrize(
    ("key", "value", "pattern"),
    [
        ("offset", "-4", "offset -4"),
        ("offset", "x", "no number"),
        ("length", "8", "with 8 bytes, but its shape"),
        ("offset", "9999999999999", "too short"),
        ("location", "", "without saying in which"),
    ],
)
def test_bad_entries(saved: Path, key: str, value: str, pattern: str) -> None:
    edit(saved, key, value)
    with pytest.raises(ModelError, match=pattern):
        load(saved)


def test_only_a_path_finds_side_files(saved: Path) -> None:
    with pytest.raises(ModelError, match="give the path"):
        load(saved.read_bytes())


def test_values_that_do_not_fill_the_shape() -> None:
    model = big_matmul()
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:100]
    with pytest.raises(ModelError, match="tensor 'w' do not fit its shape"):
        load(model)


def test_weights_in_the_protobuf_are_never_serialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of `onnx` in C++ serialises what it is given, and ends at 2 GB: none may see the weights."""
    sizes = []

    def spy(module: object, name: str) -> None:
        real = getattr(module, name)

        def measured(proto: onnx.ModelProto, *args: object, **kwargs: object) -> object:
            sizes.append(proto.ByteSize())
            return real(proto, *args, **kwargs)

        monkeypatch.setattr(module, name, measured)

    spy(onnx.checker, "check_model")
    spy(onnx.shape_inference, "infer_shapes")
    model = big_matmul()
    assert model.ByteSize() > 4 * ROWS * ROWS
    load(model)
    assert len(sizes) >= 2
    assert max(sizes) < 2000


def test_over_2_gb_of_weights_in_a_sparse_file(tmp_path: Path) -> None:
    """A 3 GB hole of a file: everything but the last rows is unused, so nothing of it is read but those."""
    rows = 3 * 2**30 // (4 * ROWS)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 13]> g (float[1,{ROWS}] x) => (float[1,{ROWS}] y, int64[2] s)'
        "{ y = MatMul(x, w)\n s = Shape(huge) }"
    )
    side = tmp_path / "weights.bin"
    with side.open("wb") as file:
        file.truncate(rows * ROWS * 4)
        file.seek(0, 2)
        file.write(np.eye(ROWS, dtype="float32").tobytes())
    for name, dims, offset in (("huge", [rows, ROWS], 0), ("w", [ROWS, ROWS], rows * ROWS * 4)):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
        entry(tensor, "location", "weights.bin")
        entry(tensor, "offset", str(offset))
        model.graph.initializer.append(tensor)
    path = tmp_path / "huge.onnx"
    path.write_bytes(model.SerializeToString())
    imported = load(path)
    assert [spec.shape for spec in imported.outputs] == [(1, ROWS), (2,)]
    assert [spec.name for spec in imported.inputs] == ["x"]
