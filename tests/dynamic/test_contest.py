"""Which alternatives a model of many shapes takes, as far as that is decided by measuring its greatest instance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from subtune import backends
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT
from subtune.core.clock import Clock
from subtune.core.graph import Alternatives
from subtune.core.measurement import Timing
from subtune.core.numerics import PLAIN
from subtune.core.record import Record
from subtune.database import Database
from subtune.dynamic import contest
from subtune.dynamic.contest import Contest
from subtune.models import reduced
from subtune.options import Options
from subtune.pipeline import Prepared
from subtune.pipeline import prepare as prepared_of
from subtune.tuning import choose
from subtune.tuning.records import Records
from subtune.tuning.search import Search, Single

DEVICE = backends.device_of("nvidia/nvidia-h100", None, None, PLAIN, is_measured=False)
OWN, ONE_KERNEL = 0, 1


@pytest.fixture(scope="module")
def stem() -> Prepared:
    """A network's first convolution, and the pooling behind it: two kernels, or one."""
    numerics = Options(precision="fp16").numerics
    return prepared_of(reduced("resnet18"), None, numerics, None, None, DEVICE.backend.forms(DEVICE.model))


@pytest.fixture(scope="module")
def others(stem: Prepared) -> Alternatives:
    found = stem.alternatives()
    assert [len(region.alternatives) for region in found.regions] == [2]
    return found


class Measured:
    """In the place of `tune`: every kernel takes a microsecond, that of the alternative `one_kernel_s`."""

    def __init__(self, others: Alternatives, one_kernel_s: float, interrupted: bool = False) -> None:
        (self._key,) = others.regions[0].alternatives[ONE_KERNEL].keys
        self._seconds, self._interrupted = one_kernel_s, interrupted
        self.keys: set[str] = set()
        self.budget_s: float | None = -1.0

    def __call__(
        self,
        first: list[Single],
        _: Device,
        search: Search,
        *,
        rivals: list[Single],
        later: list[Single],
        **__: Any,
    ) -> Records:
        records, self.budget_s = Records(), search.budget_s
        self.keys = {one.workload.key for one in (*first, *rivals, *later)}
        records.interrupted = self._interrupted
        for key in self.keys if not self._interrupted else ():
            seconds = self._seconds if key == self._key else 1e-6
            timing = Timing(seconds, seconds, 0.0, 9)
            records[key] = Record(key, "device", DEFAULT, timing, timing, 1.0, "hash", 6, 1, 0, True)
        return records


def taken(
    stem: Prepared, others: Alternatives, least: Callable[[], Prepared] | None = None, **options: Any
) -> tuple[int, Contest]:
    one = Contest(None, Database(None), Options(**options), Clock())  # type: ignore[arg-type]
    (number,) = one.taken(stem, others, least or (lambda: stem), DEVICE).values()
    return number, one


@pytest.mark.parametrize(("one_kernel_s", "expected"), [(1.5e-6, ONE_KERNEL), (9e-6, OWN)])
def test_what_is_in_doubt_is_measured(
    stem: Prepared, others: Alternatives, monkeypatch: pytest.MonkeyPatch, one_kernel_s: float, expected: int
) -> None:
    measured = Measured(others, one_kernel_s)
    monkeypatch.setattr(choose, "_CLEARLY", 100.0)
    monkeypatch.setattr(contest, "tune", measured)
    assert taken(stem, others)[0] == expected
    assert measured.keys == {key for one in others.regions[0].alternatives for key in one.keys}  # and nothing else


def test_the_least_instance_has_to_agree(stem: Prepared, others: Alternatives, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((1.5e-6, 9e-6))
    monkeypatch.setattr(choose, "_CLEARLY", 100.0)
    monkeypatch.setattr(contest, "tune", lambda *a, **k: Measured(others, next(seconds))(*a, **k))
    assert taken(stem, others)[0] == OWN
    assert next(seconds, None) is None


def test_what_the_least_instance_does_not_have_is_not_measured(
    stem: Prepared, others: Alternatives, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(*_: Any, **__: Any) -> Records:
        raise AssertionError("it cannot be taken")

    least = SimpleNamespace(subgraphs=stem.subgraphs, alternatives=lambda: replace(others, regions=()))
    monkeypatch.setattr(choose, "_CLEARLY", 100.0)
    monkeypatch.setattr(contest, "tune", tune)
    assert taken(stem, others, lambda: least)[0] == OWN  # type: ignore[arg-type,return-value]


def test_what_is_clear_is_not(stem: Prepared, others: Alternatives, monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(*_: Any, **__: Any) -> Records:
        raise AssertionError("nothing is in doubt")

    monkeypatch.setattr(contest, "tune", tune)
    monkeypatch.setattr(choose, "_CLEARLY", 1e-9)  # whatever is foreseen
    assert taken(stem, others)[0] == ONE_KERNEL


def test_without_tuning_what_was_measured_decides(
    stem: Prepared, others: Alternatives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "_CLEARLY", 100.0)
    assert taken(stem, others, tune=False)[0] == OWN, "nothing was"
    remembered = Measured(others, 1.5e-6)
    monkeypatch.setattr(contest, "tune", remembered)
    assert taken(stem, others, tune=False)[0] == ONE_KERNEL
    assert remembered.budget_s == 0, "and nothing is"


def test_an_interrupt_leaves_the_partitions_own(
    stem: Prepared, others: Alternatives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "_CLEARLY", 100.0)
    monkeypatch.setattr(contest, "tune", Measured(others, 1e-9, interrupted=True))
    number, one = taken(stem, others)
    assert number == OWN
    assert one.is_interrupted
