"""What a runner keeps of arguments: copies of weights packed in ways that no candidate needs any more are forgotten."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from onnx import helper, numpy_helper

from subtune.backends import as_device, candidates
from subtune.backends.cpu.timing import bench as timing
from subtune.core.candidate import DEFAULT
from subtune.core.measurement import Comparison, Timing
from subtune.measure import build as building
from subtune.measure import copies as keeping
from subtune.measure import run as running
from subtune.measure.copies import Copies
from subtune.measure.guarded import Guarded
from subtune.measure.messages import BuildJob, CheckJob, CompareJob, Library, TimeJob
from subtune.measure.session import SCHEDULE
from subtune.pipeline import prepare


@pytest.fixture
def workload():
    weights = numpy_helper.from_array(np.ones((64, 96), np.float32), "w")
    info = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [32, 64]), ("y", [32, 96]))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", info[:1], info[1:], [weights])
    (subgraph,) = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)).subgraphs
    return subgraph.workload


@pytest.mark.parametrize(("limit", "kept"), [(1 << 30, 2), (0, 1)])
def test_copies_of_other_packings_are_forgotten_beyond_the_limit(workload, device, tmp_path, monkeypatch, limit, kept):
    monkeypatch.setattr(timing, "_COPIES", copies := Copies(limit))
    device = as_device(device)

    def library(number, candidate):
        job = BuildJob(workload.to_json(), 1, device, candidate, SCHEDULE, str(tmp_path / str(number)))
        built = building.handle(job)
        assert isinstance(built, Library), built
        return built

    found = [library(i, candidate) for i, candidate in enumerate(candidates(workload, device, 24))]
    by_packing = {built.packings: built for built in found if built.packings}
    assert len(by_packing) > 1, "no two candidates pack the weights differently"
    bench = timing.Bench(workload, device.model, library("default", DEFAULT))
    for built in list(by_packing.values())[:2]:
        assert isinstance(bench.time(TimeJob(built, 0.01, 1.0, False)), Timing)
    packings = {packing for _, packing, _ in copies._guarded if packing is not None}
    assert len(packings) == kept
    assert set(dict(built.packings).values()) <= packings, "the last one's are there"


def test_what_a_runner_drops_is_gone_at_once(workload, device, tmp_path):
    """Python looks for cycles by the number of objects: gigabytes of arrays are few."""
    job = BuildJob(workload.to_json(), 1, as_device(device), DEFAULT, SCHEDULE, str(tmp_path / "default"))
    built = building.handle(job)
    gc.disable()
    try:
        bench = timing.Bench(workload, as_device(device).model, built)
        bench.time(TimeJob(built, 0.01, 1.0, False))
        bench.compare(CompareJob(built, 0.01))
        there = weakref.ref(bench)
        del bench
        assert there() is None
    finally:
        gc.enable()


def test_weights_of_other_instances_are_the_same_copies(workload, device, tmp_path, monkeypatch):
    """A dynamic workload's instances have equal weights: what was packed and copied for one serves the next."""
    monkeypatch.setattr(timing, "_COPIES", copies := Copies(1 << 30))
    job = BuildJob(workload.to_json(), 1, as_device(device), DEFAULT, SCHEDULE, str(tmp_path / "default"))
    built = building.handle(job)
    one, other = (timing.Bench(workload, as_device(device).model, built) for _ in range(2))
    one.time(TimeJob(built, 0.01, 1.0, False))
    held = dict(copies._guarded)
    other.time(TimeJob(built, 0.01, 1.0, False))
    assert held
    assert set(held) == set(copies._guarded)
    assert all(one is copies._guarded[key] for key, one in held.items())


def test_results_of_other_workloads_are_forgotten(workload, device, tmp_path, monkeypatch):
    """Each takes addresses, fences most of all, and a worker prepares hundreds of workloads in a compile."""
    monkeypatch.setattr(timing, "_ARRAYS", arrays := Copies(1 << 20))
    monkeypatch.setattr(timing, "_LARGE_BYTES", 0)
    monkeypatch.setattr(keeping, "_spare_addresses", lambda: 1 << 16)
    job = BuildJob(workload.to_json(), 1, as_device(device), DEFAULT, SCHEDULE, str(tmp_path / "default"))
    built = building.handle(job)
    benches = [timing.Bench(workload, as_device(device).model, built) for _ in range(5)]
    assert sum(one.mapped for _, one in arrays._guarded.values()) <= 1 << 16
    for bench in benches:  # and are there again where one is asked for
        assert isinstance(bench.compare(CompareJob(built, 0.01)), Comparison)


ONCE = Timing(1.0, 1.0, 0.0, 1)
ANSWER = Comparison(ONCE, ONCE, 1.0, 0.0)


class Greedy:
    """A session that has memory as soon as it is the only one."""

    nbytes = 0

    def check(self, job):
        if len(running._PREPARED) > 1:
            raise MemoryError
        return ANSWER


def test_where_memory_ends_other_sessions_give_way(monkeypatch):
    monkeypatch.setattr(running, "_PREPARED", {"a": Greedy(), "b": Greedy()})
    job = CheckJob(Library("", "", (), 0.0), session="a")
    assert running.handle(job) == ANSWER
    assert list(running._PREPARED) == ["a"]
    monkeypatch.setattr(Greedy, "check", lambda self, job: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        running.handle(job)


def test_what_a_kernel_wrote_to_is_copied_anew():
    array = np.arange(8, dtype=np.float32)
    copies = Copies(1 << 20)
    make = lambda: Guarded.like(array, "float32")  # noqa: E731
    first = copies.guarded(array, None, 0, make)
    assert copies.guarded(array, None, 0, make) is first
    copies.drop(array, None, 0)
    assert copies.guarded(array, None, 0, make) is not first


@pytest.mark.parametrize(("addresses", "kept"), [(1 << 30, 3), (3 << 26, 2), (0, 1)])
def test_fences_are_kept_while_there_are_addresses(monkeypatch, addresses, kept):
    """They take no memory, and 64 MiB each of what a worker may address."""
    monkeypatch.setattr(keeping, "_spare_addresses", lambda: addresses)
    copies, array = Copies(1 << 30), np.ones(8, np.float32)
    made = [copies.guarded(array, None, which, lambda: Guarded.like(array, "float32", 0, True)) for which in range(3)]
    again = [copies.guarded(array, None, which, lambda: Guarded.like(array, "float32")) for which in (2, 1, 0)[:kept]]
    assert all(one is before for one, before in zip(again, made[::-1], strict=False))
    assert len(copies._guarded) == kept
