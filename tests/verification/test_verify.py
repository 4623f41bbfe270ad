"""Verification: what counts as an error, and what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune import frontends
from subtune.artifact import load
from subtune.artifact.random_inputs import random_inputs
from subtune.core.errors import VerificationError
from subtune.core.numerics import Numerics
from subtune.core.tensor_spec import TensorSpec
from subtune.frontends.onnx.reference import integer_limits, onnxruntime_reference
from subtune.verification.references import precision_reference
from subtune.verification.verification import Verification
from subtune.verification.verify import output_error, verify


class TestOutputError:
    def test_equal(self):
        error = output_error("y", np.ones(3, np.float32), np.ones(3, np.float32))
        assert (error.max_abs, error.max_rel, error.is_within) == (0.0, 0.0, True)

    def test_an_element_near_zero_counts_by_the_scale_of_the_whole(self):
        expected = np.array([100.0, 1e-6], np.float32)
        assert output_error("y", expected + np.float32([0, 1e-5]), expected).is_within
        assert not output_error("y", expected + np.float32([0, 1.0]), expected).is_within

    def test_what_one_library_takes_for_zero_is_no_error(self):
        expected = np.array([1.9e-41, -4e-42], np.float32)
        assert output_error("y", np.zeros(2, np.float32), expected).is_within
        assert not output_error("y", np.full(2, 1e-30, np.float32), expected).is_within
        assert not output_error("y", np.zeros(2), np.array([1.9e-41, -4e-42])).is_within, "normal, as float64"

    def test_floats_of_8_bits_are_the_same_numbers(self):
        expected = np.array([1, -2, np.nan], ml_dtypes.float8_e5m2)
        assert output_error("y", expected.copy(), expected).is_within
        for wrong in ([1, -2.5, np.nan], [1, -2, 3], [np.nan, -2, np.nan]):
            assert not output_error("y", np.array(wrong, expected.dtype), expected).is_within

    @pytest.mark.parametrize(("dtype", "step"), [("float32", 1e-3), ("float16", 0.1)])
    def test_tolerance_depends_on_dtype(self, dtype, step):
        expected = np.ones(4, dtype)
        assert not output_error("y", expected + np.asarray(step, dtype), expected).is_within
        assert output_error("y", expected + np.asarray(step / 20, dtype), expected).is_within

    def test_integers_are_exact(self):
        expected = np.array([1_000_000, 5], np.int64)
        assert output_error("y", expected.copy(), expected).is_within
        error = output_error("y", expected + np.array([0, 1]), expected)
        assert (error.is_within, error.max_abs) == (False, 1.0)
        assert not output_error("y", np.array([True]), np.array([False])).is_within

    def test_nan_and_infinity_must_be_in_the_same_places(self):
        expected = np.array([np.nan, np.inf, 1.0], np.float32)
        assert output_error("y", expected.copy(), expected).is_within
        for wrong in ([np.nan, -np.inf, 1], [np.nan, np.inf, np.nan], [0, np.inf, 1], [np.nan, np.inf, np.inf]):
            assert not output_error("y", np.array(wrong, np.float32), expected).is_within

    def test_shape_and_dtype_must_agree(self):
        expected = np.ones((2, 3), np.float32)
        assert not output_error("y", np.ones((3, 2), np.float32), expected).is_within
        assert not output_error("y", np.ones((2, 3), np.float64), expected).is_within

    def test_zeros_and_nothing(self):
        assert output_error("y", np.zeros(3, np.float32), np.zeros(3, np.float32)).is_within
        assert output_error("y", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).is_within


class TestVerify:
    def test_right_model_passes_with_onnxruntime(self, small_artifact, small_model):
        pytest.importorskip("onnxruntime")
        for source in (small_model, onnx.load(small_model)):
            reference = onnxruntime_reference(source)
            assert reference is not None
            report = verify(load(small_artifact), reference, "ONNX Runtime", seeds=(0, 1))
            assert [o.name for o in report.outputs] == ["y", "s"]
            assert report.max_rel < 1e-5

    def test_wrong_output_is_named_with_both_errors(self, small_artifact, reference):
        def shifted(inputs):
            right = reference(inputs["x"])
            return {**right, "s": right["s"] + np.float32(1)}

        with pytest.raises(VerificationError, match=r"disagrees with numpy: s: max abs error 1.*, max rel error") as e:
            verify(load(small_artifact), shifted, "numpy")
        assert " y:" not in str(e.value)

    def test_reference_without_an_output(self, small_artifact, reference):
        with pytest.raises(VerificationError, match="has no output s"):
            verify(load(small_artifact), lambda inputs: {"y": reference(inputs["x"])["y"]}, "numpy")

    def test_onnxruntime_that_cannot_run_the_model_is_no_reference(self):
        pytest.importorskip("onnxruntime")
        assert onnxruntime_reference(b"not a model") is None


class TestWhatAPrecisionLosesByItself:
    """The limit is 1e-2 of the largest value in float16; a model may lose more by its own nature."""

    @staticmethod
    def off_by(share, reference):
        """The right outputs, with one element off by `share` of the largest value."""

        def run(inputs):
            found = {name: np.array(array) for name, array in reference(inputs["x"]).items()}
            for array in found.values():
                array.flat[int(np.argmin(np.abs(array)))] += np.float32(share * np.abs(array).max())
            return found

        return run

    @pytest.mark.parametrize(("error", "own", "passes"), [
        (0.02, 0.015, True), (0.02, 0.005, False), (0.02, 0.0, False), (0.2, 0.2, False), (0.2, np.nan, False),
    ])  # fmt: skip
    def test_excuses_as_much_twice_and_no_more(self, small_artifact, reference, error, own, passes):
        def check():
            away, loses = self.off_by(error, reference), self.off_by(error - own, reference)
            return verify(load(small_artifact), away, "numpy", precision="fp16", own=loses)

        if passes:
            report = check()
            assert report.own_rel == pytest.approx(own, rel=0.05)
            assert report.max_rel > report.own_rel
        else:
            with pytest.raises(VerificationError, match="tolerance"):
                check()

    @pytest.mark.parametrize(("precision", "eps"), [("fp16", 2**-11), ("bf16", 2**-8)])
    def test_is_what_default_schedules_make_of_it(self, small_model, reference, precision, eps):
        own = precision_reference(lambda: frontends.load(small_model), Numerics(precision=precision))
        x = random_inputs([TensorSpec("x", (4, 32), "float32")])["x"]
        for name, right in reference(x).items():
            error = output_error(name, own({"x": x})[name], right, precision).max_rel
            assert eps / 30 < error < 4 * eps

    def test_is_not_asked_where_the_error_is_small(self, small_artifact, reference):
        def never(inputs):
            raise AssertionError("it takes seconds to build")

        report = verify(load(small_artifact), self.off_by(0.005, reference), "numpy", precision="fp16", own=never)
        assert report.own_rel == 0.0


class TestInputs:
    def test_are_sane_and_the_same_every_time(self):
        specs = (
            TensorSpec("ids", (100,), "int64"),
            TensorSpec("mask", (100,), "int32"),
            TensorSpec("flag", (100,), "bool"),
            TensorSpec("x", (100,), "float16"),
        )
        first, second = (random_inputs(specs, seed=3, limits={"ids": 50}) for _ in range(2))
        for spec in specs:
            assert (first[spec.name].shape, str(first[spec.name].dtype)) == (spec.shape, spec.dtype)
            np.testing.assert_array_equal(first[spec.name], second[spec.name])
        assert 2 < first["ids"].max() < 50
        assert first["ids"].min() >= 0
        assert set(first["mask"].tolist()) == {0, 1}
        assert set(first["flag"].tolist()) == {True, False}
        assert first["x"].min() < 0 < first["x"].max()

    def test_limits_are_read_from_gather(self):
        tables = [numpy_helper.from_array(np.zeros((n, 4), np.float32), f"t{n}") for n in (30, 7)]
        nodes = [
            helper.make_node("Gather", ["t30", "ids"], ["a"]),
            helper.make_node("Cast", ["types"], ["types64"], to=TensorProto.INT64),
            helper.make_node("Gather", ["t7", "types64"], ["b"]),
            helper.make_node("Gather", ["t30", "types64"], ["c"]),
        ]
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT32, [2]) for n in ("ids", "types", "mask")]
        graph = helper.make_graph(nodes, "g", inputs, [], tables)
        assert integer_limits(helper.make_model(graph)) == {"ids": 30, "types": 7}

    def test_limits_are_read_from_gather_of_a_quantised_table(self):
        table = numpy_helper.from_array(np.zeros((9, 4), np.uint8), "t")
        scale, zero = (numpy_helper.from_array(v, n) for v, n in ((np.float32(0.1), "s"), (np.uint8(3), "z")))
        nodes = [
            helper.make_node("DequantizeLinear", ["t", "s", "z"], ["rows"]),
            helper.make_node("Gather", ["rows", "ids"], ["a"]),
        ]
        ids = helper.make_tensor_value_info("ids", TensorProto.INT32, [2])
        graph = helper.make_graph(nodes, "g", [ids], [], [table, scale, zero])
        assert integer_limits(helper.make_model(graph)) == {"ids": 9}


def test_a_model_too_large_to_run_here_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(*_: object) -> str:
        raise MemoryError("unable to allocate 32 GiB")

    unstarted = object.__new__(Verification)
    monkeypatch.setattr(Verification, "_compared", compared)
    monkeypatch.setattr(unstarted, "_reference", None, raising=False)
    with pytest.raises(VerificationError, match=r"too little memory .*32 GiB.*--no-verify"):
        unstarted.check(None)
