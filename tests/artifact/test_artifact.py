"""Artifacts: round trip, inputs, threads, damage, and writing all or nothing."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import subtune
from subtune import runtime
from subtune.artifact import load, manifest
from subtune.artifact.destination import check_destination
from subtune.artifact.schema import decode, encode
from subtune.assembly import Package, package, write_artifact
from subtune.core.errors import ArtifactError, InputError, VerificationError
from subtune.core.manifest import KernelOrigin, Manifest

X = np.random.default_rng(1).standard_normal((4, 32), dtype=np.float32)


def in_subprocess(code: str, *args: object) -> str:
    """What a fresh interpreter prints that runs `code`."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def edit_manifest(path: Path, **changes: object) -> None:
    """Fields in place of those of the manifest, and a checksum that is right again."""
    data = {**json.loads((path / "manifest.json").read_text()), **changes}
    text = manifest.to_text({name: value for name, value in data.items() if name not in ("format", "checksum")})
    (path / "manifest.json").write_text(text)


def one_node(node: onnx.NodeProto, inputs: list, outputs: list, initializers: tuple = ()) -> onnx.ModelProto:
    def infos(values: list) -> list:
        return [helper.make_tensor_value_info(*value) for value in values]

    graph = helper.make_graph([node], "one", infos(inputs), infos(outputs), list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    return model


class TestRun:
    def test_matches_numpy(self, small_artifact, reference):
        outputs = load(small_artifact).run({"x": X})
        assert list(outputs) == ["y", "s"]
        for name, expected in reference(X).items():
            np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-5)

    def test_results_stay_when_it_runs_again(self, small_artifact, reference):
        artifact = load(small_artifact)
        first = artifact.run({"x": X})
        artifact.run({"x": -X})
        np.testing.assert_allclose(first["y"], reference(X)["y"], rtol=1e-5, atol=1e-5)

    def test_outputs_of_two_runs_share_no_memory(self, small_artifact, reference):
        artifact = load(small_artifact)
        runs = [artifact.run({"x": X * k}) for k in (1, 2, 3)]
        arrays = [array for outputs in runs for array in outputs.values()]
        assert not any(np.may_share_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
        for k, outputs in zip((1, 2, 3), runs, strict=True):
            np.testing.assert_allclose(outputs["y"], reference(X * np.float32(k))["y"], rtol=1e-5, atol=1e-5)

    def test_memory_that_nobody_sees_is_used_again(self, small_artifact):
        artifact = load(small_artifact)
        begin = artifact.run({"x": X})["y"].ctypes.data
        again = artifact.run({"x": X})["y"]
        part = again[1:].reshape(-1)[::2]
        assert again.ctypes.data == begin
        kept = part.copy()
        del again
        assert artifact.run({"x": -X})["y"].ctypes.data != begin
        assert np.array_equal(part, kept)

    def test_two_artifacts_of_one_file_share_no_arena(self, small_artifact, reference):
        one, two = load(small_artifact), load(small_artifact)
        first = one.run({"x": X})
        two.run({"x": -X})
        np.testing.assert_allclose(first["s"], reference(X)["s"], rtol=1e-5, atol=1e-4)

    def test_outputs_go_where_they_are_wanted(self, small_artifact, reference):
        artifact, expected = load(small_artifact), reference(X)
        direct = runtime.aligned_empty(256).view(np.float32).reshape(4, 16)
        strided = np.zeros((4, 32), np.float32)[:, ::2]
        for wanted in (direct, strided):
            wanted[:] = 0
            outputs = artifact.run({"x": X}, out={"y": wanted})
            assert outputs["y"] is wanted
            assert outputs["s"] is not wanted
            np.testing.assert_allclose(wanted, expected["y"], rtol=1e-5, atol=1e-5)

    def test_arrays_begin_with_the_pointer_that_kernels_follow(self):
        """What is compiled against numpy's C interface relies on it, too."""
        for array in (X, X[1:], np.zeros((), "int8"), np.zeros(3, "float16").view(np.recarray)):
            pointer = ctypes.c_void_p.from_address(id(array) + object.__basicsize__)
            assert pointer.value == array.ctypes.data

    def test_an_output_may_replace_an_input(self, build_artifact, tmp_path):
        weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 8), np.float32), "w")
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        model = one_node(node, [("x", TensorProto.FLOAT, [8, 8])], [("y", TensorProto.FLOAT, [8, 8])], (weight,))
        artifact = build_artifact(model, tmp_path / "m.subtune")
        x = runtime.aligned_empty(256).view(np.float32).reshape(8, 8)
        x[:] = np.eye(8)
        assert artifact.run({"x": x}, out={"y": x})["y"] is x
        np.testing.assert_allclose(x, numpy_helper.to_array(weight), rtol=1e-6)

    @pytest.mark.parametrize(
        ("out", "message"),
        [
            ({"z": np.zeros((4, 16), np.float32)}, r"out has an array for z, and the model small gives y: float32"),
            (
                {"y": np.zeros((4, 15), np.float32)},
                r"out\['y'\] is float32\[4, 15\]; the output is y: float32",
            ),
            ({"s": np.zeros(4)}, r"out\['s'\] is float64\[4\]"),
            ({"s": [0.0] * 4}, r"out\['s'\] is list"),
            ({"s": np.broadcast_to(np.float32(0), 4)}, r"out\['s'\] is read-only"),
        ],
    )
    def test_arrays_that_cannot_take_an_output_are_refused(self, small_artifact, out, message):
        with pytest.raises(InputError, match=message):
            load(small_artifact).run({"x": X}, out=out)

    def test_arrays_for_outputs_that_overlap_are_refused(self, small_artifact):
        y = np.zeros((4, 16), np.float32)
        with pytest.raises(InputError, match=r"out\['s'\] overlaps"):
            load(small_artifact).run({"x": X}, out={"y": y, "s": y[:, 0]})

    @pytest.mark.parametrize("is_shared", [True, False])
    def test_weights_are_mapped_or_read(self, build_artifact, tmp_path, is_shared):
        values = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        shape = [2, 1024]
        model = one_node(
            node,
            [("x", TensorProto.FLOAT, shape)],
            [("y", TensorProto.FLOAT, shape)],
            (numpy_helper.from_array(values, "w"),),
        )
        build_artifact(model, tmp_path / "m.subtune")
        x = np.ones((2, 1024), np.float32)
        artifact = load(tmp_path / "m.subtune", share_weights=is_shared)
        np.testing.assert_allclose(artifact.run({"x": x})["y"], x @ values, rtol=1e-3, atol=1e-3)
        assert artifact.manifest.weights_nbytes == values.nbytes
        lines = Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else ""
        if lines and runtime.has_huge_pages():
            assert (str(tmp_path / "m.subtune" / "weights.bin") in lines) == is_shared

    def test_any_memory_layout_is_taken(self, small_artifact, reference):
        artifact, expected = load(small_artifact), reference(X)["y"]
        raw = np.empty(X.nbytes + 1, np.uint8)
        misaligned = raw[1:].view(np.float32).reshape(X.shape)
        misaligned[:] = X
        aligned = runtime.aligned_empty(X.nbytes).view(np.float32).reshape(X.shape)
        aligned[:] = X
        read_only = X.copy()
        read_only.flags.writeable = False
        strided = np.repeat(X, 2, axis=1)[:, ::2]
        for array in (misaligned, aligned, read_only, strided, np.asfortranarray(X)):
            np.testing.assert_allclose(artifact.run({"x": array})["y"], expected, rtol=1e-5, atol=1e-5)

    def test_arguments_in_another_order_than_the_inputs(self, build_artifact, tmp_path):
        names, shape = ("a", "b"), [8, 16]
        node = helper.make_node("Sub", ["b", "a"], ["y"])
        infos = [(name, TensorProto.FLOAT, shape) for name in names]
        artifact = build_artifact(one_node(node, infos, [("y", TensorProto.FLOAT, shape)]), tmp_path / "m.subtune")
        a, b = np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
        assert np.array_equal(artifact.run({"b": b, "a": a})["y"], b - a)
        assert np.array_equal(artifact.run({"a": a, "b": b}, out={"y": np.empty(shape, np.float32)})["y"], b - a)

    def test_dlpack_in_and_out(self, small_artifact, reference):
        import tvm_ffi

        tensors = load(small_artifact).run_tensors({"x": tvm_ffi.from_dlpack(X.copy())})
        np.testing.assert_allclose(np.from_dlpack(tensors["y"]), reference(X)["y"], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({}, "no array for x"),
            ({"z": X}, "no array for x; unknown input z"),
            ({"x": X, "z": X}, "unknown input z"),
            ({"x": X[:2]}, r"input x has shape \(2, 32\), the model takes x: float32\[4, 32\]"),
            ({"x": X.astype(np.float64)}, "input x has dtype float64, the model takes x: float32"),
            ({"x": X.tolist()}, "input x is of type list; give a numpy array"),
        ],
    )
    def test_wrong_inputs_are_refused(self, small_artifact, inputs, message):
        with pytest.raises(InputError, match=message):
            load(small_artifact).run(inputs)

    def test_called_from_several_threads(self, small_artifact, reference):
        artifact, wrong = load(small_artifact), []

        def work(scale: float) -> None:
            for _ in range(20):
                got = artifact.run({"x": X * scale})["y"]
                if not np.allclose(got, reference(X * scale)["y"], rtol=1e-4, atol=1e-4):
                    wrong.append(scale)

        workers = [threading.Thread(target=work, args=(np.float32(i + 1),)) for i in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert wrong == []

    def test_benchmark_gives_seconds(self, small_artifact):
        assert load(small_artifact).benchmark(repeats=3) > 0


class TestDtypes:
    @pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint8", "int32", "int64"])
    def test_add_in(self, build_artifact, tmp_path, dtype):
        elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        x = np.arange(6).reshape(2, 3).astype(dtype)
        weight = numpy_helper.from_array(np.full((2, 3), 3, dtype), "w")
        node = helper.make_node("Add", ["x", "w"], ["y"])
        model = one_node(node, [("x", elem, [2, 3])], [("y", elem, [2, 3])], (weight,))
        y = build_artifact(model, tmp_path / "m.subtune").run({"x": x})["y"]
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, x + 3)

    def test_bool(self, build_artifact, tmp_path):
        node = helper.make_node("Not", ["x"], ["y"])
        model = one_node(node, [("x", TensorProto.BOOL, [3])], [("y", TensorProto.BOOL, [3])])
        y = build_artifact(model, tmp_path / "m.subtune").run({"x": np.array([True, False, True])})["y"]
        assert y.tolist() == [False, True, False]

    def test_bfloat16(self, tmp_path):
        import ml_dtypes
        from tvm import relax

        from subtune.backends.cpu.device import CPU
        from subtune.core.tensor_spec import TensorSpec

        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((2, 3), "bfloat16"))
        with builder.function("main", [x]):
            builder.emit_func_output(builder.emit(relax.op.add(x, x)))
        mod = relax.transform.LegalizeOps()(builder.get())
        spec = TensorSpec("x", (2, 3), "bfloat16")
        outputs = [TensorSpec("y", (2, 3), "bfloat16")]
        path = write_artifact(tmp_path / "m.subtune", Package(mod, (spec,), tuple(outputs)), CPU())
        artifact = load(path)
        value = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
        y = artifact.run({"x": value})["y"]
        assert y.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(y.astype(np.float32), 2 * np.arange(6).reshape(2, 3))

    def test_output_that_is_the_input_is_a_copy(self, build_artifact, tmp_path):
        shape = numpy_helper.from_array(np.array([6], np.int64), "shape")
        node = helper.make_node("Reshape", ["x", "shape"], ["y"])
        model = one_node(node, [("x", TensorProto.FLOAT, [2, 3])], [("y", TensorProto.FLOAT, [6])], (shape,))
        artifact = build_artifact(model, tmp_path / "m.subtune")
        x = runtime.aligned_empty(24).view(np.float32).reshape(2, 3)
        for given in (x, np.zeros((2, 3), np.float32)):
            given[:] = 1
            y = artifact.run({"x": given})["y"]
            given[:] = 7
            artifact.run({"x": given})
            assert y.tolist() == [1.0] * 6

    def test_output_that_is_a_weight_is_a_copy(self, build_artifact, tmp_path):
        weight = numpy_helper.from_array(np.arange(64, dtype=np.float32), "w")
        node = helper.make_node("Identity", ["w"], ["y"])
        model = one_node(node, [], [("y", TensorProto.FLOAT, [64])], (weight,))
        artifact = build_artifact(model, tmp_path / "m.subtune")
        artifact.run({})["y"][:] = 0
        assert artifact.run({})["y"].tolist() == list(range(64))


class TestProcess:
    def test_loading_needs_no_tuner(self, small_artifact):
        code = (
            "import sys, subtune, numpy as np; a = subtune.load(sys.argv[1]);"
            "a.run({'x': np.zeros((4, 32), 'float32')});"
            "print(*sorted(m for m in sys.modules if m.startswith('subtune')), 'tvm' in sys.modules)"
        )
        *loaded, has_tvm = in_subprocess(code, small_artifact).split()
        assert has_tvm == "False"
        rooms = ("tuning", "patterns", "tir", "frontends", "passes", "measure", "database", "driver", "assembly")
        assert not [module for module in loaded if module.split(".")[1:2] and module.split(".")[1] in rooms]

    def test_a_model_that_sorts(self, build_artifact, tmp_path):
        """TVM's sorting functions are in a library of their own, which the compiler loads and the runtime does not."""
        inputs = [("x", TensorProto.FLOAT, [2, 5])]
        outputs = [("values", TensorProto.FLOAT, [2, 3]), ("indices", TensorProto.INT64, [2, 3])]
        k = numpy_helper.from_array(np.array([3], np.int64), "k")
        model = one_node(helper.make_node("TopK", ["x", "k"], ["values", "indices"]), inputs, outputs, (k,))
        build_artifact(model, tmp_path / "a.subtune")
        code = (
            "import sys, subtune, numpy as np\n"
            "print(subtune.load(sys.argv[1]).run({'x': np.float32([[1, 5, 2, 4, 3]] * 2)})['indices'].tolist())"
        )
        assert in_subprocess(code, tmp_path / "a.subtune") == "[[1, 3, 4], [1, 3, 4]]"

    def test_tvm_may_be_imported_before_and_after(self, small_artifact):
        code = (
            "import sys\n{before}\nimport subtune, numpy as np\na = subtune.load(sys.argv[1])\n"
            "x = np.ones((4, 32), 'float32')\nfirst = a.run({{'x': x}})['y']\n{after}\n"
            "print(np.array_equal(first, a.run({{'x': x}})['y']))"
        )
        for before, after in (("import tvm", ""), ("", "import tvm")):
            assert in_subprocess(code.format(before=before, after=after), small_artifact) == "True"

    @pytest.mark.parametrize("threads", [1, 2, 3])
    def test_the_given_number_of_threads_runs(self, small_artifact, threads):
        # Counted from outside: the main thread is one of them.
        code = (
            "import sys, os, subtune, numpy as np\n"
            "before = len(os.listdir('/proc/self/task'))\n"
            "a = subtune.load(sys.argv[1], threads=int(sys.argv[2]))\n"
            "a.run({'x': np.zeros((4, 32), 'float32')})\n"
            "from subtune.runtime.threads import _pool_function\n"
            "print(_pool_function('runtime.NumThreads')(), len(os.listdir('/proc/self/task')) - before + 1)"
        )
        assert in_subprocess(code, small_artifact, threads) == f"{threads} {threads}"

    def test_a_pool_that_is_too_small_is_passed_by(self, small_artifact):
        code = (
            "import os, sys\nos.environ['TVM_NUM_THREADS'] = '1'\nimport tvm\nassert tvm.runtime.num_threads() == 1\n"
            "import subtune, numpy as np\na = subtune.load(sys.argv[1], threads=2)\n"
            "a.run({'x': np.zeros((4, 32), 'float32')})\n"
            "print(a.program._own_thread.submit(tvm.runtime.num_threads).result(), tvm.runtime.num_threads())"
        )
        assert in_subprocess(code, small_artifact) == "2 1"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_runs_after_a_fork(self, small_artifact):
        code = (
            "import os, sys, subtune, numpy as np\na = subtune.load(sys.argv[1], threads=2)\n"
            "x = np.ones((4, 32), 'float32')\nfirst = a.run({'x': x})['y']\npid = os.fork()\n"
            "if pid == 0:\n"
            "    import signal\n    signal.alarm(300)\n"
            "    same = [np.array_equal(b.run({'x': x})['y'], first) for b in (a, subtune.load(sys.argv[1]))]\n"
            "    os._exit(0 if all(same) else 1)\n"
            "print(os.waitpid(pid, 0)[1])"
        )
        assert in_subprocess(code, small_artifact) == "0"


class TestLoad:
    def test_manifest_says_what_it_is(self, small_artifact):
        said = load(small_artifact).manifest
        assert (said.name, said.threads) == ("small", 2)
        assert [str(spec) for spec in (*said.inputs, *said.outputs)] == [
            "x: float32[4, 32]",
            "y: float32[4, 16]",
            "s: float32[4]",
        ]
        assert dict(said.versions)["subtune"] == subtune.__version__
        assert all(len(entry.linked_hash) == 16 for entry in said.subgraphs)
        assert said.subgraphs
        assert all(weight.offset % 64 == 0 for weight in said.weights)
        assert decode(Manifest, json.loads(json.dumps(encode(said)))) == said
        assert said.weights_nbytes == (32 * 16 + 16) * 4
        assert said.memory.bound_nbytes <= said.memory.arena_nbytes <= said.memory.total_nbytes + 64
        assert "MiB in one arena" in said.memory_summary()

    def test_nothing_there(self, tmp_path):
        with pytest.raises(ArtifactError, match="there is no artifact at"):
            load(tmp_path / "none.subtune")

    def test_not_an_artifact(self, tmp_path):
        with pytest.raises(ArtifactError, match="is not an artifact"):
            load(tmp_path)

    @pytest.mark.parametrize("file", ["model.so", "weights.bin"])
    def test_missing_file(self, own_artifact, file):
        (own_artifact / file).unlink()
        with pytest.raises(ArtifactError, match=f"{file} is missing"):
            load(own_artifact)

    @pytest.mark.parametrize("file", ["model.so", "weights.bin"])
    def test_truncated_file(self, own_artifact, file):
        size = (own_artifact / file).stat().st_size
        os.truncate(own_artifact / file, size // 2)
        with pytest.raises(ArtifactError, match=rf"{file} is damaged: it has {size // 2} bytes"):
            load(own_artifact)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 7}', "\x00\x01", "[" * 100000])
    def test_damaged_manifest(self, own_artifact, text):
        (own_artifact / "manifest.json").write_text(text)
        with pytest.raises(ArtifactError, match=r"manifest\.json is damaged"):
            load(own_artifact)

    def test_flipped_bit_is_found_by_check(self, own_artifact):
        content = bytearray((own_artifact / "weights.bin").read_bytes())
        content[5] ^= 1
        (own_artifact / "weights.bin").write_bytes(content)
        load(own_artifact)
        with pytest.raises(ArtifactError, match=r"weights\.bin is damaged: its SHA-256 differs"):
            load(own_artifact, check=True)

    def test_library_that_is_none(self, own_artifact):
        size = (own_artifact / "model.so").stat().st_size
        (own_artifact / "model.so").write_bytes(b"\0" * size)
        with pytest.raises(ArtifactError, match=r"model\.so is damaged: its SHA-256 differs"):
            load(own_artifact)

    def test_other_format(self, own_artifact):
        data = json.loads((own_artifact / "manifest.json").read_text())
        (own_artifact / "manifest.json").write_text(json.dumps({**data, "format": 4}))
        with pytest.raises(ArtifactError, match="has artifact format 4, this subtune reads 7; compile the model again"):
            load(own_artifact)

    def test_other_tvm(self, own_artifact):
        edit_manifest(own_artifact, versions={"subtune": "0.1.0", "tvm": "0.1.2", "ffi": "0.0.1"})
        with pytest.raises(ArtifactError, match=r"compiled with TVM 0\.1\.2, here is TVM"):
            load(own_artifact)

    @pytest.mark.skipif(not runtime.cpu_flags(), reason="the processor's features cannot be read here")
    def test_processor_without_the_features(self, own_artifact):
        edit_manifest(own_artifact, features=["sse9.9", "warp-drive"])
        with pytest.raises(ArtifactError, match=r"uses sse9\.9, warp-drive, which this processor lacks"):
            load(own_artifact)


class TestWrite:
    def test_replaces_an_artifact_and_leaves_nothing_beside_it(self, build_artifact, own_artifact, reference):
        from subtune.core.manifest import Source

        old = load(own_artifact)
        model = onnx.load(load(own_artifact).manifest.source.model)
        build_artifact(model, own_artifact, source=Source("second"))
        assert load(own_artifact).manifest.source.model == "second"
        assert [p.name for p in own_artifact.parent.iterdir()] == [own_artifact.name]
        np.testing.assert_allclose(old.run({"x": X})["y"], reference(X)["y"], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("kind", ["file", "directory", "link"])
    def test_refuses_what_is_in_the_way(self, tmp_path, kind):
        path = tmp_path / "m.subtune"
        if kind == "file":
            path.write_text("mine")
        elif kind == "directory":
            path.mkdir()
            (path / "thesis.txt").write_text("mine")
        else:
            path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ArtifactError, match="is in the way"):
            check_destination(path)

    def test_refuses_a_directory_that_is_not_there(self, tmp_path):
        with pytest.raises(ArtifactError, match="does not exist"):
            check_destination(tmp_path / "none" / "m.subtune")

    def test_failing_check_leaves_the_old_artifact(self, build_artifact, own_artifact):
        before = (own_artifact / "manifest.json").read_bytes()
        model = onnx.load(load(own_artifact).manifest.source.model)

        def refuse(artifact: subtune.Artifact) -> None:
            artifact.run({"x": X})
            raise VerificationError("no")

        with pytest.raises(VerificationError, match="no"):
            build_artifact(model, own_artifact, check=refuse)
        assert (own_artifact / "manifest.json").read_bytes() == before
        assert [p.name for p in own_artifact.parent.iterdir()] == [own_artifact.name]

    @pytest.mark.parametrize("size", ["4k", "16k", "24k"])
    def test_full_disk(self, tmp_path, size):
        mount = f"mount -t tmpfs -o size={size} tmpfs {tmp_path}"
        if (
            shutil.which("unshare") is None
            or subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode
        ):
            pytest.skip("needs leave to mount a small file system")
        code = (
            "import sys, os, importlib.util\n"
            "spec = importlib.util.spec_from_file_location('c', sys.argv[1])\n"
            "c = importlib.util.module_from_spec(spec); spec.loader.exec_module(c)\n"
            "from subtune.core.errors import ArtifactError\n"
            "try:\n    c.builder()(c.small_onnx(), c.Path(sys.argv[2]) / 'm.subtune')\n"
            "except ArtifactError as e:\n    print(e, os.listdir(sys.argv[2]))\n"
        )
        arguments = [sys.executable, "-c", code, str(Path(__file__).parents[1] / "small_model.py"), str(tmp_path)]
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "cannot write" in done.stdout
        assert "No space left on device" in done.stdout
        assert done.stdout.strip().endswith("[]")

    def test_full_disk_while_weights_are_written(self, build_artifact, small_model, tmp_path, monkeypatch):
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(package, "write_weights", full)
        with pytest.raises(ArtifactError, match=r"cannot write .*: No space left on device; nothing was written"):
            build_artifact(onnx.load(small_model), tmp_path / "m.subtune")
        assert list(tmp_path.iterdir()) == []

    def test_measured_and_linked_hash_must_agree(self, build_artifact, small_model, tmp_path):
        model = onnx.load(small_model)
        linked = build_artifact(model, tmp_path / "a.subtune").manifest.subgraphs[0]
        origin = KernelOrigin(linked.name, "key", "default()", linked.linked_hash, 2e-3, 1e-3)
        entry = next(
            e
            for e in build_artifact(model, tmp_path / "b.subtune", kernels=[origin]).manifest.subgraphs
            if e.name == linked.name
        )
        assert (entry.measured_hash, entry.gain) == (linked.linked_hash, 2.0)
        with pytest.raises(AssertionError, match="measured as another PrimFunc"):
            build_artifact(model, tmp_path / "c.subtune", kernels=[KernelOrigin(linked.name, measured_hash="0" * 16)])
        assert not (tmp_path / "c.subtune").exists()

    def test_no_linker(self, monkeypatch):
        from subtune.backends.host import link

        for variable in ("CC", "CXX"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PATH", "")
        with pytest.raises(ArtifactError, match="no linker found: install one of"):
            link.link_command()

    @pytest.mark.skipif(shutil.which("ld") is None, reason="needs ld")
    def test_a_bare_linker_is_enough(self, build_artifact, small_model, tmp_path, monkeypatch, reference):
        tools = tmp_path / "bin"
        tools.mkdir()
        (tools / "ld").symlink_to(str(shutil.which("ld")))
        for variable in ("CC", "CXX"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PATH", str(tools))
        artifact = build_artifact(onnx.load(small_model), tmp_path / "m.subtune")
        np.testing.assert_allclose(artifact.run({"x": X})["y"], reference(X)["y"], rtol=1e-5, atol=1e-5)


def test_hash_of_a_file(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert manifest.sha256_of(tmp_path / "f").startswith("ba7816bf")
