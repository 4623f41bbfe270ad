"""A model that amplifies rounding is compared as far as it can be, and no further."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune import frontends, models
from subtune.artifact import load
from subtune.core.errors import VerificationError
from subtune.core.numerics import PLAIN
from subtune.core.reference import by_an_ulp
from subtune.driver import compile_model
from subtune.frontends.onnx.reference import OnnxRuntime
from subtune.pipeline import prepare
from subtune.tuning import winners
from subtune.tuning.winners import schedule_kernels
from subtune.verification.sensitivity import Sensitivity, _of_output, sensitivities
from subtune.verification.verification import Verification

pytest.importorskip("onnxruntime")


def residual(depth: int, gain: float, epsilon: float = 1e-5, odd: float = 1.0) -> onnx.ModelProto:
    """x + tanh(norm(x) @ w), `depth` times, norms untrained; a large gain makes it chaotic.

    `odd` is a factor of one column of the first weight.
    """
    rng = np.random.default_rng(0)
    weights = [(gain / 8 * rng.standard_normal((64, 64))).astype(np.float32) for _ in range(depth)]
    weights[0][:, 5] *= np.float32(odd)
    nodes, x = [], "x"
    for i in range(depth):
        nodes += [
            helper.make_node("LayerNormalization", [x, "scale", "bias"], [f"n{i}"], epsilon=epsilon),
            helper.make_node("MatMul", [f"n{i}", f"w{i}"], [f"m{i}"]),
            helper.make_node("Tanh", [f"m{i}"], [f"t{i}"]),
            helper.make_node("Add", [x, f"t{i}"], [f"y{i}"]),
        ]
        x = f"y{i}"
    inits = [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(weights)]
    norms = (("scale", 1), ("bias", 0))
    inits += [numpy_helper.from_array(np.full(64, value, np.float32), name) for name, value in norms]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in ("x", x)]
    graph = helper.make_graph(nodes, "residual", values[:1], values[1:], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


UNSTABLE, LESS, STABLE = ({"depth": 20, "gain": gain} for gain in (60.0, 20.0, 1.0))


def test_an_unstable_model_compiles_and_the_report_says_so(tmp_path: Path) -> None:
    report = compile_model(residual(**UNSTABLE), tmp_path / "m.subtune", tune=False, database=tmp_path / "t.db")
    assert "up to 4 times what rounding does to this model; y19: the model amplifies rounding by" in report.verified
    assert report.verified in str(report)


def test_of_a_stable_model_nothing_is_excused(tmp_path: Path) -> None:
    report = compile_model(residual(**STABLE), tmp_path / "m.subtune", tune=False, database=tmp_path / "t.db")
    assert report.verified.startswith("agrees with ONNX Runtime: largest relative error")


@pytest.mark.parametrize("net", [UNSTABLE, STABLE])
def test_a_wrong_kernel_is_refused(net: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The norms' kernels add another epsilon."""
    model, other = residual(**net), prepare(residual(**net, epsilon=0.1)).subgraphs

    def schedule(subgraphs: Any, chosen: Any, device: Any) -> Any:
        bad = schedule_kernels(other, {}, device)
        return {name: bad[name] for name in schedule_kernels(subgraphs, chosen, device)}

    monkeypatch.setattr(winners, "schedule_kernels", schedule)
    with pytest.raises(VerificationError, match=r"disagrees with ONNX Runtime: y19.*; y19: the model amplifies"):
        compile_model(model, tmp_path / "m.subtune", tune=False, database=tmp_path / "t.db")
    assert not (tmp_path / "m.subtune").exists()


@pytest.mark.parametrize(("net", "odd"), [(UNSTABLE, 0.0), (UNSTABLE, -1.0), (LESS, 1.01), (STABLE, 1.01)])
def test_a_wrong_weight_is_refused(net: dict[str, Any], odd: float, tmp_path: Path) -> None:
    """One column of 64 in one layer of 20."""
    compile_model(
        residual(**net, odd=odd), tmp_path / "m.subtune", tune=False, verify=False, database=tmp_path / "t.db"
    )
    right = residual(**net)
    with ThreadPoolExecutor(1) as beside:
        verification = Verification(frontends.load(right), lambda: frontends.load(right), PLAIN, beside)
        with pytest.raises(VerificationError, match="disagrees"):
            verification.check(load(tmp_path / "m.subtune"))


class Numbers:
    """A reference, and an artifact, that adds noise of a size of its own to what the model computes."""

    name, is_installed = "numpy", True

    def __init__(self, small: Any, model: Any, amplified: float, away: float) -> None:
        self.manifest, self.inputs, self.outputs = small.manifest, small.inputs, small.outputs
        self._model, self._amplified, self._away = model, amplified, away

    def limits(self) -> dict[str, int]:
        return {}

    def start(self, threads: int) -> Any:
        return lambda arrays: self._noisy(arrays, 0.0, 0)

    def as_written(self, threads: int) -> Any:
        return None

    def moved(self, threads: int, variation: int) -> Any:
        return lambda arrays: self._noisy(arrays, self._amplified, variation)

    def run(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._noisy(arrays, self._away, 99)

    def _noisy(self, arrays: dict[str, np.ndarray], size: float, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        right = self._model(arrays["x"])
        return {
            name: (y + size * np.sqrt(np.mean(y * y)) * rng.choice([-1, 1], y.shape)).astype(np.float32)
            for name, y in right.items()
        }


@pytest.fixture
def judged(small_artifact: Path, reference: Any) -> Any:
    def judge(amplified: float, away: float, model: Any = reference) -> Sensitivity:
        both: Any = Numbers(load(small_artifact), model, amplified, away)
        return sensitivities(both, both, 1, {}, ["y"])[0]

    return judge


class TestSensitivity:
    @pytest.mark.parametrize(("amplified", "away", "passes"), [
        (1e-3, 3e-3, True), (1e-3, 5e-3, False), (0.0, 1e-3, False), (0.0, 1e-6, True), (0.25, 0.2, True),
        (0.25, 1.5, False), (3.0, 1.5, False),
    ])  # fmt: skip
    def test_excuses_four_times_what_an_ulp_does(
        self, judged: Any, amplified: float, away: float, passes: bool
    ) -> None:
        found = judged(amplified, away)
        assert found.is_excused == passes
        assert found.own == pytest.approx(amplified, rel=0.05, abs=1e-6)
        assert found.error == pytest.approx(away, rel=0.05, abs=1e-6)
        assert found.amplification == pytest.approx(found.own * 2**23)

    def test_what_is_as_far_as_other_inputs_is_refused(self, judged: Any) -> None:
        """A model that hardly looks at its input: results on other inputs are no answer."""
        constant = lambda x: {"y": 100 + x[:, :16]}  # noqa: E731
        found = judged(0.01, 0.02, constant)
        assert not found.is_excused
        assert "nothing can be compared (--no-verify)" in str(found)
        assert judged(0.0005, 0.001, constant).is_excused

    def test_one_element_far_away_is_refused(self, judged: Any, small_artifact: Path, reference: Any) -> None:
        class Spike(Numbers):
            def run(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
                found = reference(arrays["x"])
                found["y"].flat[3] += 0.03 * np.abs(found["y"]).max()
                return dict(found)

        both: Any = Spike(load(small_artifact), reference, 5e-3, 0.0)
        (found,) = sensitivities(both, both, 1, {}, ["y"])
        assert found.error < 4 * found.own
        assert not found.is_excused

    @pytest.mark.parametrize(
        ("rewritten", "away", "passes"), [(0.2, 0.0, True), (0.2, 1e-3, True), (2e-4, 1e-2, False)]
    )
    def test_what_the_reference_does_without_rewriting_is_right(
        self, small_artifact: Path, reference: Any, rewritten: float, away: float, passes: bool
    ) -> None:
        """The reference is `rewritten` away from the model as it is written, and we are `away`."""

        class Rewriting(Numbers):
            def start(self, threads: int) -> Any:
                return lambda arrays: self._noisy(arrays, rewritten, 5)

            def as_written(self, threads: int) -> Any:
                return lambda arrays: self._noisy(arrays, 0.0, 0)

            def moved(self, threads: int, variation: int) -> Any:
                return self.start(threads)

        both: Any = Rewriting(load(small_artifact), reference, 0.0, away)
        assert sensitivities(both, both, 1, {}, ["y"])[0].is_excused == passes

    @pytest.mark.parametrize("wrong", [np.nan, np.inf])
    def test_numbers_that_are_none_are_refused(self, small_artifact: Path, reference: Any, wrong: float) -> None:
        class Broken(Numbers):
            def run(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
                found = reference(arrays["x"])
                found["y"].flat[3] = wrong
                return dict(found)

        both: Any = Broken(load(small_artifact), reference, 0.1, 0.0)
        assert not sensitivities(both, both, 1, {}, ["y"])[0].is_excused


class TestByAnUlp:
    def test_moves_up_and_down_and_back(self) -> None:
        array = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
        one, other = by_an_ulp(array, 0), by_an_ulp(array, 1)
        assert (one != array).all()
        assert (np.sign(one - array) == -np.sign(other - array)).all()
        assert 400 < np.sum(one > array) < 600
        assert (np.abs(one - array) <= np.spacing(np.abs(array))).all()

    @pytest.mark.parametrize("values", [[0.0, -0.0], [np.inf, -np.inf], [3.4028235e38, -3.4028235e38]])
    def test_what_means_exactly_that_stays(self, values: Sequence[float]) -> None:
        array = np.float32(values)
        for variation in range(4):
            moved = by_an_ulp(array, variation)
            assert np.isfinite(moved).tolist() == np.isfinite(array).tolist()
            assert ((array == 0) <= (moved == 0)).all()

    def test_goes_as_far_as_it_is_told(self) -> None:
        array = np.float32([1.5, -3.0])
        assert (np.abs(by_an_ulp(array, 0, times=4) - array) == 4 * np.spacing(np.abs(array))).all()

    def test_integers_stay_and_types_too(self) -> None:
        assert by_an_ulp(np.arange(3), 0).tolist() == [0, 1, 2]
        assert by_an_ulp(np.ones(3, np.float16), 0).dtype == np.float16


def test_floats_of_8_bits_are_judged() -> None:
    """A step is excused where the reference moves by one, too."""
    right, other, step = (np.array(v, ml_dtypes.float8_e5m2) for v in ([1, 2, -4], [4, -1, 2], [1, 2.5, -4]))
    for moved, is_excused in ((step, True), (right, False)):
        found = _of_output("y", [step, other], [right, other], [[moved, other]])
        assert found.is_excused == is_excused


@pytest.mark.parametrize("name", ["mlp-int8", "convnext_tiny-int8"])
def test_the_scales_of_a_quantised_model_are_moved(name: str) -> None:
    """And nothing else: ONNX Runtime turns ConvNeXt's float factors, and fails on others in their place."""
    model = models.reduced(name)
    reference, inputs = OnnxRuntime(model), models.example_inputs(model, 9)
    start, moved = reference.start(1), reference.moved(1, 0)
    assert start
    assert moved
    (right,), (other,) = (run(inputs).values() for run in (start, moved))
    assert (right != other).any()
    np.testing.assert_allclose(right, other, atol=0.1 * np.abs(right).max())


def test_the_scales_of_dynamic_products_are_moved() -> None:
    """They are factors behind MatMulInteger."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.integers(-127, 128, (8, 5)).astype(np.int8), "s": np.float32([0.01])}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        helper.make_node("MatMulInteger", ["q", "w", "qz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["qs", "s"], ["both"]),
        helper.make_node("Mul", ["f", "both"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", [4, 8]), ("y", [4, 5]))
    ]
    inits = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "dynamic", values[:1], values[1:], inits)
    reference = OnnxRuntime(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    start, moved, written = reference.start(1), reference.moved(1, 2), reference.as_written(1)
    assert start
    assert moved
    assert written
    x = {"x": rng.standard_normal((4, 8)).astype(np.float32)}
    assert (moved(x)["y"] != start(x)["y"]).any()
    np.testing.assert_array_equal(written(x)["y"], start(x)["y"])
    assert OnnxRuntime(residual(**STABLE)).as_written(1) is None
