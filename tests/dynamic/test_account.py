"""The account of a model of many shapes: its greatest instance, what every kernel takes, and which is taken where."""

from __future__ import annotations

import pytest

from subtune import frontends
from subtune.artifact.schema import decode, encode
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.account import Account, LatencyAt, Span
from subtune.core.candidate import Candidate
from subtune.core.dispatch import Leaf, Split
from subtune.core.domain import Domain, Symbol
from subtune.core.measurement import Failure, FailureKind
from subtune.core.numerics import PLAIN
from subtune.dynamic.account import account
from subtune.dynamic.choose import Chosen
from subtune.dynamic.model import DynamicModel, dynamic_model
from subtune.pipeline import Prepared, prepare_imported
from tests.dynamic import models

DEVICE = as_device(CPU(threads=1))
MOST = 20
LOW, HIGH, OTHER, WRONG = (Candidate.make("contraction", mr=mr) for mr in (1, 4, 5, 6))


@pytest.fixture(scope="module")
def dynamic() -> DynamicModel:
    """Two products: rows of n elements, and n columns."""
    inputs = frontends.symbolic_inputs(models.beginnings(), None, None)

    def prepare(point: dict[str, int], lengths: object) -> Prepared:
        imported = frontends.load(models.beginnings(), frontends.instance(inputs, point, None), None)
        return prepare_imported(imported, PLAIN, None, DEVICE.backend.forms(DEVICE.model))

    return dynamic_model(Domain((Symbol.uniform("n", tuple(range(1, MOST + 1))),)), prepare)


@pytest.fixture(scope="module")
def chosen(dynamic: DynamicModel) -> dict[str, Chosen]:
    """Of every subgraph two kernels, the first for up to 8; a third was timed, and one failed."""
    seconds = {LOW: {(1,): 1e-6, (20,): 9e-6}, HIGH: {(1,): 2e-6, (20,): 4e-6}, OTHER: {(20,): 4.2e-6}}
    expected = {(n,): 1e-6 if n <= 8 else 4e-6 for n in range(1, MOST + 1)}
    failures = {WRONG: Failure(FailureKind.WRONG_RESULT, "wrong\nat once")}
    tree = Split(0, 8, Leaf(0), Leaf(1))
    return {
        name: Chosen(one, (LOW, HIGH), tree, seconds, failures, 0.02, expected)
        for name, one in dynamic.workloads.items()
    }


@pytest.fixture(scope="module")
def made(dynamic: DynamicModel, chosen: dict[str, Chosen]) -> Account:
    return account(dynamic, chosen, set(), DEVICE, {"tune": 3.0}, ["a note"])


def test_the_greatest_instance_is_as_a_model_of_one_shape(made: Account, dynamic: DynamicModel) -> None:
    assert [one.name for one in made.subgraphs] == list(dynamic.workloads)
    for one in made.subgraphs:
        assert one.schedule == str(HIGH)
        assert one.tuned_s == 4e-6
        assert one.default_s == one.predicted_s == 0.0
        assert (one.tried, one.failures) == (4, (("wrong-result", 1),))
        listed = [(tried.schedule, tried.measured_s) for tried in one.candidates]
        assert listed == [(str(HIGH), 4e-6), (str(OTHER), 4.2e-6), (str(LOW), 9e-6), (str(WRONG), 0.0)]
        assert one.candidates[-1].message == "wrong at once"
    assert {node.subgraph for node in made.nodes if node.subgraph} <= {one.name for one in made.subgraphs}
    products = {one.flops for one in made.subgraphs if one.anchor == "matmul"}
    assert products == {2 * 5 * 40 * MOST, 2 * 5 * 20 * MOST}


def test_what_is_taken_where(made: Account) -> None:
    for one in made.shaped:
        assert one.spans == (Span(1, 8, 0), Span(9, MOST, 1))
        assert one.instances == ((1,), (20,))
        ships = {kernel.schedule: (kernel.ships, kernel.measured_s) for kernel in one.kernels}
        assert ships == {
            str(LOW): (True, (1e-6, 9e-6)),
            str(HIGH): (True, (2e-6, 4e-6)),
            str(OTHER): (False, (0.0, 4.2e-6)),
        }


def test_latencies_are_sums_over_all_uses(made: Account, dynamic: DynamicModel) -> None:
    uses = {one.name: one.uses for one in dynamic.greatest.subgraphs}
    calls = sum(uses.get(name, 1) for name in dynamic.workloads)
    assert made.latencies[0] == LatencyAt((1,), pytest.approx(calls * 1e-6))
    assert made.latencies[-1] == LatencyAt((MOST,), pytest.approx(calls * 4e-6))
    assert len(made.latencies) == MOST


def test_what_was_not_timed_has_no_times(dynamic: DynamicModel, chosen: dict[str, Chosen]) -> None:
    untuned = next(iter(chosen))
    made = account(dynamic, chosen, {untuned}, DEVICE, {})
    assert next(one for one in made.subgraphs if one.name == untuned).tuned_s == 0.0
    assert untuned not in {one.name for one in made.shaped}
    assert made.latencies == (), "a sum without one of them says nothing"


def test_it_comes_back_from_json(made: Account) -> None:
    assert decode(Account, encode(made)) == made
