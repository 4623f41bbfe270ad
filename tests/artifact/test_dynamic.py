"""Artifacts whose shapes vary: written, read, damaged, run in every instance, and refused outside of them."""

from __future__ import annotations

import gc
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subtune import runtime
from subtune.artifact import dynamic, load
from subtune.artifact import manifest as manifests
from subtune.artifact.symbol_form import SymbolForm
from subtune.core.cache import Cache
from subtune.core.domain import Domain, Symbol
from subtune.core.errors import ArtifactError, InputError
from subtune.core.memory_plan import Base, MemoryPlan, View
from subtune.core.tensor_spec import TensorSpec
from tests.artifact.damage import edit
from tests.artifact.dynamic_model import DOMAIN, INPUTS, OUTPUTS, arrays, expected, write_dynamic


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dynamic(tmp_path_factory.mktemp("artifact") / "dynamic.subtune")


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "own.subtune"))


def forge(folder: Path, **fields: Any) -> None:
    """Other fields in the manifest, and a checksum that is right again."""
    data = {**json.loads((folder / "manifest.json").read_text()), **fields}
    text = manifests.to_text({name: value for name, value in data.items() if name not in ("format", "checksum")})
    (folder / "manifest.json").write_text(text)


def check(outputs: dict[str, np.ndarray], inputs: dict[str, np.ndarray]) -> None:
    for name, wanted in expected(**inputs).items():
        assert outputs[name].shape == wanted.shape
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-5, atol=1e-5)


class TestRun:
    def test_every_instance(self, folder):
        artifact = load(folder)
        for values, _ in DOMAIN.instances():
            inputs = arrays(**values)
            check(artifact.run(inputs), inputs)

    def test_results_stay_and_memory_is_used_again(self, folder):
        artifact = load(folder)
        inputs = arrays(2, 4, 3)
        first, kept = artifact.run(inputs), artifact.run(arrays(2, 4, 2))
        artifact.run(arrays(2, 4, 3, seed=1))
        check(first, inputs)
        check(kept, arrays(2, 4, 2))
        begin = first["y"].ctypes.data
        del first, kept
        gc.collect()
        artifact.run(arrays(4, 8, 5))
        begin = artifact.run(arrays(4, 8, 5))["y"].ctypes.data
        for values in ((1, 0, 1), (4, 8, 5), (2, 7, 3)):
            assert artifact.run(arrays(*values))["y"].ctypes.data == begin

    def test_memory_grows_to_the_largest_instance_and_not_beyond(self, folder):
        slot = dynamic.VaryingOutput(OUTPUTS[0], 832)
        for nbytes, held in ((0, 1), (16, 16), (48, 64), (33, 64), (528, 832), (832, 832)):
            assert slot.new((nbytes // 4,), nbytes // 4 * 4).base.nbytes == held + runtime.ALIGNMENT

    def test_results_feed_the_next_run(self, folder):
        """A cache that grows: what comes out goes in."""
        artifact, cache = load(folder), np.zeros((1, 0, 4), np.float32)
        for past in range(9):
            inputs = {**arrays(1, past, 1, seed=past), "cache": cache}
            outputs = artifact.run(inputs)
            check(outputs, inputs)
            cache = outputs["y"]

    def test_any_memory_layout_and_dlpack(self, folder):
        import tvm_ffi

        artifact = load(folder)
        for batch, past, seq in ((2, 4, 3), (4, 8, 5), (1, 1, 1)):
            inputs = arrays(batch, past, seq)
            strided = {name: np.repeat(array, 2, axis=-1)[..., ::2] for name, array in inputs.items()}
            check(artifact.run(strided), inputs)
            check(artifact.run({**inputs, "x": tvm_ffi.from_dlpack(inputs["x"].copy())}), inputs)
            tensors = artifact.run_tensors(inputs)
            check({name: np.from_dlpack(tensor) for name, tensor in tensors.items()}, inputs)

    def test_out_takes_outputs_of_the_actual_shape(self, folder):
        artifact, inputs = load(folder), arrays(2, 4, 3)
        direct = np.empty((2, 7, 4), np.float32)
        strided = np.empty((2, 6), np.float32)[:, ::2]
        outputs = artifact.run(inputs, out={"y": direct, "sums": strided})
        assert outputs["y"] is direct
        assert outputs["sums"] is strided
        check(outputs, inputs)

    @pytest.mark.parametrize(
        ("out", "message"),
        [
            (
                {"y": np.empty((2, 8, 4), np.float32)},
                r"out\['y'\] is float32\[2, 8, 4\]; the output is y: float32\[2, 7, 4\]",
            ),
            ({"y": np.empty((2, 7, 4))}, r"out\['y'\] is float64"),
            ({"sums": 7}, r"out\['sums'\] is int; the output is sums: float32\[2, 3\]"),
            (
                {"z": np.empty(3)},
                r"out has an array for z, and the model dynamic gives y: float32\[batch, past \+ seq, 4\]",
            ),
            ({"sums": np.broadcast_to(np.float32(0), (2, 3))}, r"out\['sums'\] is read-only"),
            ([], "out is of type list"),
        ],
    )
    def test_other_arrays_for_outputs_are_refused(self, folder, out, message):
        with pytest.raises(InputError, match=message):
            load(folder).run(arrays(2, 4, 3), out=out)

    def test_arrays_for_outputs_that_overlap_are_refused(self, folder):
        flat = np.empty(56, np.float32)
        with pytest.raises(InputError, match=r"out\['flat'\] overlaps"):
            load(folder).run(arrays(2, 4, 3), out={"y": flat.reshape(2, 7, 4), "flat": flat})

    def test_an_output_may_replace_an_input(self, folder):
        artifact, inputs = load(folder), arrays(2, 0, 3)
        wanted = expected(**inputs)["y"]
        x = inputs["x"]
        assert artifact.run(inputs, out={"y": x})["y"] is x
        np.testing.assert_allclose(x, wanted, rtol=1e-6)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"x": np.zeros((2, 6, 4), np.float32)},
                "axis 1 of input x is 6: seq is 6, and the model was compiled for seq=1..5",
            ),
            ({"x": np.zeros((4, 3, 4), np.float32)}, "batch is 4 by axis 0 of x and 2 by axis 0 of cache; give arrays"),
            (
                {"mask": np.zeros((2, 8), np.int64)},
                r"past \+ seq is 7 by axis 1 of x and axis 1 of cache and 8 by axis 1 of",
            ),
            (
                {"x": np.zeros((2, 3, 5), np.float32)},
                r"input x has shape \(2, 3, 5\), the model takes x: float32\[batch, seq",
            ),
            ({"x": np.zeros((2, 3), np.float32)}, r"input x has shape \(2, 3\), the model takes"),
            ({"x": np.zeros((2, 3, 4))}, r"input x has dtype float64, the model takes x: float32\[batch, seq, 4\]"),
            ({"x": [1.0]}, "input x is of type list; give a numpy array"),
            ({"z": np.zeros(1)}, "unknown input z"),
        ],
    )
    def test_wrong_inputs_are_refused(self, folder, changes, message):
        inputs = {**arrays(2, 4, 3), **changes}
        if "x" in changes and np.shape(changes["x"])[:2] == (2, 6):
            inputs["mask"] = np.zeros((2, 10), np.int64)
        artifact = load(folder)
        for _ in range(2):  # a refusal is not remembered as anything else
            with pytest.raises(InputError, match=f"^{message}"):
                artifact.run(inputs)

    def test_no_inputs_at_all(self, folder):
        for given_inputs in ({}, {"x": arrays(1, 1, 1)["x"]}):
            with pytest.raises(InputError, match=r"no array for .*mask: the model dynamic takes x"):
                load(folder).run(given_inputs)

    def test_few_shapes_are_remembered(self, folder, monkeypatch):
        monkeypatch.setattr(dynamic, "_REMEMBERED", 4)
        artifact = load(folder)
        for values, _ in DOMAIN.instances():
            artifact.run(arrays(**values))
        inputs = arrays(1, 0, 1)
        check(artifact.run(inputs), inputs)
        assert len(artifact._dynamic._known) == 4

    def test_called_from_several_threads(self, folder):
        artifact, wrong = load(folder), []

        def work(batch: int) -> None:
            for seq in (1, 2, 3, 4, 5) * 4:
                inputs = arrays(batch, seq, seq, seed=batch)
                outputs = artifact.run(inputs)
                if not all(np.allclose(outputs[name], wanted) for name, wanted in expected(**inputs).items()):
                    wrong.append((batch, seq))

        workers = [threading.Thread(target=work, args=(batch,)) for batch in (1, 2, 4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert wrong == []

    def test_benchmark_takes_the_largest_instance_or_what_is_given(self, folder):
        artifact = load(folder)
        assert artifact.benchmark(repeats=2) > 0
        assert artifact.benchmark(arrays(1, 1, 1), repeats=2) > 0
        assert (4, 5, 4) in {shapes[0] for shapes in artifact._dynamic._known}


class TestManifest:
    def test_a_long_range_is_written_in_a_few_characters(self, folder):
        written = json.loads((folder / "manifest.json").read_text())["domain"]["symbols"]
        assert [symbol["text"] for symbol in written] == ["seq=1..5", "batch=1,2,4", "past=0..8"]
        assert [symbol["weights"] for symbol in written] == [[], [0.5, 0.25, 0.25], []]
        assert manifests.read(folder).domain == DOMAIN
        assert manifests.read(folder).inputs == INPUTS

    @given(
        st.sets(st.integers(0, 2000), min_size=1, max_size=12)
        .map(sorted)
        .flatmap(
            lambda values: st.tuples(st.just(tuple(values)), st.lists(st.integers(1, 99), min_size=12, max_size=12))
        )
    )
    def test_every_symbol_comes_back(self, found):
        values, numbers = found
        total = sum(numbers[: len(values)])
        symbols = Symbol.uniform("s", values), Symbol("s", values, tuple(n / total for n in numbers[: len(values)]))
        for symbol in symbols:
            form = SymbolForm.of(symbol)
            assert form.value() == symbol
            assert (form.weights == ()) == (symbol == symbols[0])

    @pytest.mark.parametrize(
        ("text", "weights", "message"),
        [
            ("seq", [], "'seq' has no values"),
            ("1a=1..2", [], "'1a=1..2' names no symbol"),
            ("seq=", [], "has no values"),
            ("seq=5..1", [], "do not increase"),
            ("seq=1,1", [], "do not increase"),
            ("seq=1,2,3", [], "'seq=1,2,3' should be 'seq=1..3'"),
            ("seq=01..5", [], "has no values"),
            ("seq=-1..5", [], "has no values"),
            ("seq=1..5..7", [], "has no values"),
            ("seq=1..99999999999", [], "has more than 1048576 values"),
            ("seq=1.." + "9" * 5000, [], "has no values"),
            ("seq=1..5", [1.0], "seq has 5 values and 1 weights"),
            ("seq=1..2", [0.5, 0.6], "the weights of seq are negative or do not sum to 1"),
            ("seq=1..2", [1.5, -0.5], "the weights of seq are negative"),
        ],
    )
    def test_text_that_is_no_symbol(self, own, text, weights, message):
        symbols = json.loads((own / "manifest.json").read_text())["domain"]["symbols"][1:]
        forge(own, domain={"symbols": [{"text": text, "weights": weights}, *symbols]})
        with pytest.raises(
            ArtifactError, match=rf"manifest.json is damaged: domain.symbols\[0\]: .*{message}"
        ) as found:
            load(own)
        assert len(str(found.value).splitlines()) == 1

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"domain": Domain(())}, "the domain does not say what batch of x: float32"),
            ({"domain": Domain((*DOMAIN.symbols, DOMAIN.symbols[0]))}, "the domain has two symbols of the name 'seq'"),
            ({"domain": Domain((*DOMAIN.symbols, Symbol.uniform("z", (1,))))}, "the shape of no input says what z is"),
            (
                {"inputs": (INPUTS[2], TensorSpec("x", ("batch",), "int64"))},
                "the shape of no input says what (seq|past) is",
            ),
            (
                {"inputs": (*INPUTS, TensorSpec("z", ("8 - seq",), "int64"))},
                "the dimension -seq \\+ 8 of z: .* is negative, or not largest where its symbols are",
            ),
            (
                {"inputs": (*INPUTS, TensorSpec("z", ("seq - 2",), "int64"))},
                "the dimension seq - 2 of z: .* is negative",
            ),
            ({"inputs": (*INPUTS, TensorSpec("z", (f"{1 << 61}*seq",), "int64"))}, "is larger than any memory"),
            (
                {"outputs": (OUTPUTS[0], OUTPUTS[1], TensorSpec("sums", ("seq", 5), "float32"))},
                "output sums: .* is a copy of",
            ),
            (  # as many elements in the largest instance, fewer in others
                {"outputs": (OUTPUTS[0], TensorSpec("flat", (4, 52), "float32"), OUTPUTS[2])},
                r"output flat: float32\[4, 52\] is a copy of",
            ),
            ({"outputs": (TensorSpec("y", ("batch", "seq", 4), "float32"), *OUTPUTS[1:])}, "and is used as float32"),
            ({"caches": (Cache(9, 0, 1, 13),)}, "a cache is input 9 and output 0, and there are not so many"),
            ({"caches": (Cache(1, 0, 2, 13),)}, "output y: .* is no input cache: .* with more rows along axis 2"),
            ({"caches": (Cache(1, 0, 1, 12),)}, "the cache y: .* has room for 12 rows"),
            ({"caches": (Cache(1, 0, 1, 14),)}, r"output 0 is float32\[4, 14, 4\] and is used as float32\[4, 13, 4\]"),
            ({"caches": (Cache(1, 0, 1, 13), Cache(1, 0, 1, 13))}, "two caches are the same input"),
            (
                {
                    "caches": (Cache(1, 0, 1, 13),),
                    "memory": MemoryPlan(128, 128, 128, (View(Base.INPUT, 1, (4, 8, 4), "float32"),)),
                },
                "a kernel reads cache: .* whose rows are in the memory of an output",
            ),
        ],
    )
    def test_domains_and_tensors_that_contradict(self, folder, own, changes, message):
        manifest = replace(manifests.read(folder), **changes)
        (own / "manifest.json").write_text(manifests.to_text(manifests.encode(manifest)))
        with pytest.raises(ArtifactError, match=f"manifest.json is damaged: .*{message}"):
            load(own)
        with pytest.raises(AssertionError, match="the manifest contradicts itself"):
            manifests.write(own, manifest)

    def test_edits_are_refused_or_mean_the_same(self, own):
        """As for static ones (`test_damage`), here without the order of symbols, which only the program knows."""
        file = own / "manifest.json"
        original = {k: v for k, v in json.loads(file.read_text()).items() if k not in ("format", "checksum")}
        inputs, refused = arrays(2, 4, 3), []
        for seed in range(300):
            data = json.loads(json.dumps(original))
            what = edit(data, seed, is_plain=True)
            file.write_text(manifests.to_text(data))
            try:
                results = load(own).run(inputs)
            except (ArtifactError, InputError) as e:
                refused.append(f"{what}: {e}")
                continue
            check(dict(zip(("y", "flat", "sums"), results.values(), strict=True)), inputs)  # under whatever names
        assert len(refused) > 150
        assert [text for text in refused if len(text.splitlines()) > 1] == []

    def test_without_a_domain_nothing_varies(self, own_artifact):
        assert json.loads((own_artifact / "manifest.json").read_text())["domain"] == {"symbols": []}
        data = json.loads((own_artifact / "manifest.json").read_text())
        del data["domain"]
        fields = {name: value for name, value in data.items() if name not in ("format", "checksum")}
        (own_artifact / "manifest.json").write_text(manifests.to_text(fields))
        with pytest.raises(ArtifactError, match=r"manifest\.json is damaged: domain is missing"):
            load(own_artifact)


class TestPrograms:
    def test_a_virtual_machine_says_that_it_takes_no_symbols(self, own):
        memory: MemoryPlan = replace(manifests.read(own).memory, takes_addresses=False)
        manifests.write(own, replace(manifests.read(own), memory=memory))
        with pytest.raises(ArtifactError, match="its program runs in TVM's virtual machine, which takes no symbols"):
            load(own)
