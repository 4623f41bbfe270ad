"""What is tried for many shapes in the place of a candidate for one."""

from __future__ import annotations

from dataclasses import replace

from subtune.backends import as_device
from subtune.backends.base import Device, Problem
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import Candidate
from tests.backends.workloads import batch_matmul, conv, dense

STRASSEN = Candidate.make("strassen", levels=1, mr=13, nr=32, mb=13, order="n", prefetch=True)


def of_many(rows: int, candidate: Candidate, vector_registers: int = 32) -> list[Candidate]:
    model = replace(CPU("znver4", threads=2), vector_registers=vector_registers)
    device: Device = as_device(model)
    problem = Problem(dense(rows, 256, 256), device.model, device.numerics)
    return list(device.backend.for_many_shapes(problem, candidate))


def test_tiles_of_several_heights_take_the_same_weights() -> None:
    found = {one for rows in range(76, 200) for one in of_many(rows, STRASSEN)}
    assert len({one.get("mr") for one in found}) > 2
    assert {(one.get("levels"), one.get("panel"), one.get("prefetch")) for one in found} == {(1, 16, True)}
    assert {"tn", "tm"} <= {one.get("order") for one in found}
    for one in found:  # of every thread's share of the rows, one tile at least
        assert int(one["mb"]) == int(one["mr"]) * (2 if one["order"] == "tm" else 1)
    for rows in range(76, 200):  # of half of them
        half = -(-rows // 2)
        assert min(-(-half // mb) * mb for mb in (int(one["mb"]) for one in of_many(rows, STRASSEN))) <= half * (
            1 + 1 / 13
        )


def test_of_many_tiles_the_last_one_does_not_count() -> None:
    assert [one.get("mr") for one in of_many(2048, STRASSEN)] == [13]


def test_without_registers_for_other_heights_the_candidate_stays() -> None:
    assert [one.get("mr") for one in of_many(81, STRASSEN, vector_registers=4)] == [13]


def test_other_families_and_weights_that_are_not_packed() -> None:
    (dense_tile,) = of_many(81, Candidate.make("contraction", mr=4, nr=64, mt=1, order="n"))
    assert (dense_tile.get("mr"), dense_tile.get("panel")) == (4, 16)
    rows = Candidate.make("elementwise", shape="flat", unroll=4, wide=False)
    assert of_many(81, rows) == [rows]


def test_one_row_may_have_weights_of_its_own() -> None:
    """In panels as wide as its tile, which are fewer streams; beside the panels that all tiles share."""
    row = Candidate.make("contraction", mr=1, nr=128, mt=1, order="n")
    assert [one.get("panel") for one in of_many(1, row)] == [16, None]
    assert [one.get("panel") for one in of_many(2, row)] == [16]


def test_prefetches_are_shared_out_among_as_many_tiles_as_there_are() -> None:
    tall = Candidate.make("contraction", mr=4, nr=64, mt=1, order="n", prefetch=True)
    assert {rows: of_many(rows, tall)[0].get("passes") for rows in (3, 16, 60, 1000)} == {3: 1, 16: 4, 60: 4, 1000: 16}
    assert of_many(1000, Candidate.make("contraction", mr=4, nr=64, mt=1, order="n"))[0].get("passes") is None


def test_tiles_of_images_are_counted() -> None:
    device = as_device(CPU("znver4", threads=2))
    candidate = Candidate.make("winograd", m=4, mr=8, nr=32, fuse=False, prefetch=True)
    for batch, passes in ((1, 2), (2, 2), (5, 4)):  # of nine tiles each
        problem = Problem(conv(12, 32, 64, 3, batch=batch), device.model, device.numerics)
        assert [one.get("passes") for one in device.backend.for_many_shapes(problem, candidate)] == [passes]


def test_rows_of_a_product_of_two_inputs_are_shared_out_tile_by_tile() -> None:
    device: Device = as_device(CPU("znver4", threads=2))
    problem = Problem(batch_matmul(12, 36, 64, 64), device.model, device.numerics)
    several, single = (Candidate.make("contraction", mr=6, nr=32, mt=mt, order="m") for mt in (4, 1))
    assert list(device.backend.for_many_shapes(problem, several)) == [single]
    assert list(device.backend.for_many_shapes(problem, single)) == [single]
