"""What the documents promise of threads: one artifact in many, many artifacts in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from subtune.artifact import Artifact, load
from tests.artifact.dynamic_model import arrays, write_dynamic

THREADS, RUNS = 8, 1000
Inputs = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def dynamic_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dynamic(tmp_path_factory.mktemp("threads") / "dynamic.subtune")


def fixed(seed: int) -> Inputs:
    return {"x": np.random.default_rng(seed).standard_normal((4, 32), np.float32)}


def varying(seed: int) -> Inputs:
    """Every thread has shapes of its own."""
    return arrays((1, 2, 4)[seed % 3], seed % 9, 1 + seed % 5, seed)


def differing(artifact: Artifact, inputs: Inputs, expected: Inputs, runs: int) -> int:
    """Runs in which an output is not `expected`, bit for bit."""
    wrong = 0
    for _ in range(runs):
        outputs = artifact.run(inputs)
        wrong += any(outputs[name].tobytes() != array.tobytes() for name, array in expected.items())
    return wrong


def together(works: list[Callable[[], int]]) -> list[int]:
    """What each gives, in a thread of its own, all at the same time; an exception is raised here."""
    found: list[int | BaseException] = [0] * len(works)

    def work(place: int) -> None:
        try:
            found[place] = works[place]()
        except BaseException as e:
            found[place] = e

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if isinstance(one, int)]


@pytest.mark.parametrize("make", [fixed, varying])
def test_one_artifact_in_many_threads(small_artifact, dynamic_artifact, make):
    artifact = load(small_artifact if make is fixed else dynamic_artifact)
    given = [make(seed) for seed in range(THREADS)]
    expected = [{name: array.copy() for name, array in artifact.run(inputs).items()} for inputs in given]

    def work(place: int) -> Callable[[], int]:
        return lambda: differing(artifact, given[place], expected[place], RUNS)

    assert together([work(place) for place in range(THREADS)]) == [0] * THREADS


def test_many_artifacts_in_one_process(small_artifact, dynamic_artifact):
    """Each has memory of its own, also those that were loaded from the same place."""
    loaded = [
        load(small_artifact if place % 2 else dynamic_artifact, threads=1 + place % 2) for place in range(THREADS)
    ]
    given = [(fixed if place % 2 else varying)(place) for place in range(THREADS)]
    expected = [
        {name: array.copy() for name, array in artifact.run(inputs).items()}
        for artifact, inputs in zip(loaded, given, strict=True)
    ]

    def work(place: int) -> Callable[[], int]:
        return lambda: differing(loaded[place], given[place], expected[place], RUNS // 4)

    assert together([work(place) for place in range(THREADS)]) == [0] * THREADS


def test_outputs_stay_when_other_threads_run(small_artifact):
    """The memory of an output is used again only once nobody has it."""
    artifact = load(small_artifact)
    kept: list[list[Inputs]] = [[] for _ in range(THREADS)]

    def work(place: int) -> Callable[[], int]:
        return lambda: sum(kept[place].append(artifact.run(fixed(place))) is None for _ in range(20))

    assert together([work(place) for place in range(THREADS)]) == [20] * THREADS
    for place, outputs in enumerate(kept):
        wanted = artifact.run(fixed(place))
        assert all(np.array_equal(one["y"], wanted["y"]) for one in outputs)
