"""Caches kept in place: a decoder's results are those of the form that copies, and what a run gave stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from subtune.artifact import Artifact, load
from subtune.cli.main import main
from subtune.core.errors import InputError, SubtuneError
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from tests.dynamic import models

CACHES = {"past_key": "key", "past_value": "value"}
HEADS, WIDTH = 2, 16
LENGTHS = {"batch": "1..2", "past": "0..40", "seq": "1..12"}

Pair = tuple[Artifact, Artifact]


@pytest.fixture(scope="module")
def pair(workers: LocalMeasurer, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A layer of a decoder that copies its caches, and the same with them in place."""
    folder, made = tmp_path_factory.mktemp("caches"), []
    for way in ("copied", "in-place"):
        path = folder / f"{way}.subtune"
        compile_model(
            models.cached(), path, dynamic=LENGTHS, cache=way, tune=False, verify=False, threads=2, measurer=workers
        )
        made.append(load(path))
    return made[0], made[1]


@pytest.fixture
def in_place(pair: Pair) -> Artifact:
    return pair[1]


def words(batch: int, seq: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, seq, HEADS * WIDTH), np.float32)


def rows(batch: int, past: int, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((batch, HEADS, past, WIDTH), np.float32) for name in CACHES}


def following(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: outputs[output] for name, output in CACHES.items()}


def generated(artifact: Artifact, batch: int, lengths: list[int]) -> Iterator[dict[str, np.ndarray]]:
    """The outputs of runs that have so many new words each."""
    cache = rows(batch, 0)
    for seed, seq in enumerate(lengths):
        outputs = artifact.run({"x": words(batch, seq, seed), **cache})
        yield outputs
        cache = following(outputs)


def check_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def memory_behind(array: np.ndarray) -> np.ndarray:
    """The rows of its memory behind an array's own."""
    owner: Any = array.base
    start = address(array) - address(owner)
    whole = np.ndarray((array.shape[0], HEADS, 64, WIDTH), np.float32, owner, start)
    return whole[:, :, array.shape[2] :]


def test_what_it_says_of_itself(pair):
    copied, in_place = pair
    assert in_place.inputs == copied.inputs
    assert in_place.outputs == copied.outputs
    assert not copied.manifest.caches
    found = [(one.input, one.output, one.axis, one.capacity) for one in in_place.manifest.caches]
    assert found == [(1, 1, 2, 64), (2, 2, 2, 64)], "the longest is 52, and whole vectors of keys are 64"
    assert in_place.manifest.memory.arena_nbytes < copied.manifest.memory.arena_nbytes, "no padded copies"


def test_every_bit_is_as_with_copies(pair):
    copied, in_place = pair
    for batch in (1, 2):
        for past in (0, 1, 15, 28, 31, 32, 40):
            for seq in (1, 2, 4, 12):
                inputs = {"x": words(batch, seq), **rows(batch, past)}
                check_equal(in_place.run(inputs), copied.run(inputs))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("lengths", [[7, 1, 1, 1, 12, 1, 5, 12, 12], [1] * 41, [12, 12, 12, 4, 12]], ids=str)
def test_generated_text_is_as_with_copies(pair, batch, lengths):
    copied, in_place = pair
    addresses = set()
    for found, expected in zip(generated(in_place, batch, lengths), generated(copied, batch, lengths), strict=True):
        check_equal(found, expected)
        addresses.add(tuple(address(found[name]) for name in CACHES.values()))
    assert len(addresses) == 1, "every run found its cache where it was"


def test_rows_behind_the_last_are_nobodys(pair):
    """NaN in them reaches no result: neither those that are written, nor those up to a whole vector of keys."""
    copied, in_place = pair
    cache, expected_cache = rows(1, 0), rows(1, 0)
    for seed, seq in enumerate((5, 1, 9, 12, 6, 1)):
        x = words(1, seq, seed)
        found, expected = in_place.run({"x": x, **cache}), copied.run({"x": x, **expected_cache})
        check_equal(found, expected)
        cache, expected_cache = following(found), following(expected)
        for array in cache.values():
            memory_behind(array)[:] = np.nan


def test_a_cache_that_is_given_twice_is_copied(pair):
    """Two texts may go on from one cache, whoever is first."""
    copied, in_place = pair
    start = following(in_place.run({"x": words(1, 6), **rows(1, 0)}))
    before = {name: array.copy() for name, array in start.items()}
    one = in_place.run({"x": words(1, 3, 1), **start})
    kept = {name: array.copy() for name, array in one.items()}
    other = in_place.run({"x": words(1, 2, 2), **start})
    check_equal(other, copied.run({"x": words(1, 2, 2), **before}))
    check_equal(one, kept)
    check_equal(start, before)
    assert address(one["key"]) == address(start["past_key"]) != address(other["key"])


def test_fewer_rows_than_there_were(pair):
    """Words that are taken back leave the longer cache as it was."""
    copied, in_place = pair
    longer = in_place.run({"x": words(1, 8), **rows(1, 0)})
    kept = {name: array.copy() for name, array in longer.items()}
    shorter = {name: array[:, :, :5] for name, array in following(longer).items()}
    inputs = {name: array.copy() for name, array in shorter.items()}
    check_equal(in_place.run({"x": words(1, 2, 3), **shorter}), copied.run({"x": words(1, 2, 3), **inputs}))
    check_equal(longer, kept)


def test_one_array_for_two_caches(pair):
    copied, in_place = pair
    start = in_place.run({"x": words(1, 6), **rows(1, 0)})["key"]
    same = dict.fromkeys(CACHES, start)
    expected = copied.run({"x": words(1, 2, 1), **dict.fromkeys(CACHES, start.copy())})
    check_equal(in_place.run({"x": words(1, 2, 1), **same}), expected)


def test_two_texts_in_turn(pair):
    lengths = [5, 1, 1, 8]
    turns = zip(*(generated(one, batch, lengths) for one in pair for batch in (1, 2)), strict=True)
    addresses = set()
    for expected_1, expected_2, found_1, found_2 in turns:
        check_equal(found_1, expected_1)
        check_equal(found_2, expected_2)
        addresses.add((address(found_1["key"]), address(found_2["key"])))
    assert len(addresses) == 1


def test_memory_is_used_again(in_place):
    first = address(in_place.run({"x": words(1, 6), **rows(1, 0)})["key"])
    assert address(in_place.run({"x": words(1, 6), **rows(1, 0)})["key"]) == first, "nobody has the first one"
    kept = [in_place.run({"x": words(1, 6), **rows(1, 0)}) for _ in range(3)]
    assert len({address(one["key"]) for one in kept}) == 3


def test_arrays_of_the_callers(pair):
    """Any strides, and outputs that are wanted elsewhere."""
    copied, in_place = pair
    turned = {name: np.asfortranarray(array) for name, array in rows(2, 9).items()}
    out = {"key": np.full((2, HEADS, 12, WIDTH), 7, np.float32)}
    found = in_place.run({"x": words(2, 3), **turned}, out=out)
    assert found["key"] is out["key"]
    check_equal(found, copied.run({"x": words(2, 3), **turned}))
    tensors = in_place.run_tensors({"x": words(2, 3), **turned})
    check_equal({name: np.from_dlpack(tensor) for name, tensor in tensors.items()}, found)


@pytest.mark.parametrize(
    ("past", "seq", "message"),
    [
        (41, 1, r"past is 41, and the model was compiled for past=0\.\.40"),
        (40, 13, r"seq is 13, and the model was compiled for seq=1\.\.12"),
    ],
)
def test_longer_than_the_longest(in_place, past, seq, message):
    with pytest.raises(InputError, match=message) as refused:
        in_place.run({"x": words(1, seq), **rows(1, past)})
    assert "\n" not in str(refused.value)


def test_a_refused_run_changes_nothing(in_place):
    cache = following(in_place.run({"x": words(1, 6), **rows(1, 0)}))
    kept = {name: array.copy() for name, array in cache.items()}
    with pytest.raises(InputError, match="seq is 13"):
        in_place.run({"x": words(1, 13), **cache})
    with pytest.raises(InputError, match="has dtype float64"):
        in_place.run({"x": words(1, 1), **cache, "past_key": cache["past_key"].astype("float64")})
    check_equal(cache, kept)


def looked_at() -> onnx.ModelProto:
    """A decoder of whose caches something else is computed, too."""
    made = models.cached()
    for name in CACHES:
        made.graph.node.append(helper.make_node("Relu", [name], [f"{name}_above_zero"]))
        shape = ["batch", HEADS, "past", WIDTH]
        made.graph.output.append(helper.make_tensor_value_info(f"{name}_above_zero", 1, shape))
    onnx.checker.check_model(made)
    return made


def given_twice() -> onnx.ModelProto:
    """A decoder that gives its caches flat as well."""
    made = models.cached()
    made.graph.initializer.append(models.numbers("flat_rows", 0, -1, WIDTH))
    for name in CACHES.values():
        made.graph.node.append(helper.make_node("Reshape", [name, "flat_rows"], [f"{name}_flat"]))
        made.graph.output.append(helper.make_tensor_value_info(f"{name}_flat", 1, ["batch", "rows", WIDTH]))
    onnx.checker.check_model(made)
    return made


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        (models.layer(), ["--dynamic", "seq=1..9"]),
        (looked_at(), [f"--dynamic={name}={values}" for name, values in LENGTHS.items()]),
        (given_twice(), [f"--dynamic={name}={values}" for name, values in LENGTHS.items()]),
        (models.cached(), ["--dynamic", "batch=1..2", "--dynamic", "past=8", "--dynamic", "seq=1..4"]),
    ],
    ids=["no cache", "read by others", "given twice", "of one length"],
)
def test_what_has_no_such_cache_is_refused(model, flags, tmp_path, capsys):
    onnx.save(model, tmp_path / "m.onnx")
    path = tmp_path / "m.subtune"
    options = [*flags, "--cache", "in-place", "--no-tune", "-o", str(path)]
    assert main(["compile", str(tmp_path / "m.onnx"), *options]) == 2
    error = capsys.readouterr().err
    assert "The model has no cache that could be kept in place" in error
    assert len(error.strip().splitlines()) == 1
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shapes": {"batch": 1, "past": 8, "seq": 1}, "cache": "in-place"},
            "say which lengths it may have",
        ),
        ({"dynamic": LENGTHS, "cache": "here"}, "cache='here' is no way to keep a cache: give 'copied' or 'in-place'"),
    ],
)
def test_options_that_say_nothing(options, message, tmp_path: Path):
    with pytest.raises(SubtuneError, match=message):
        compile_model(models.cached(), tmp_path / "m.subtune", **options)
