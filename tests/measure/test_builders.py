"""Builders that several sessions share: whoever is first gets them, and all of them come back."""

from __future__ import annotations

import threading
import time

from subtune.measure.local import _Builders


def test_an_idle_builder_is_taken_once() -> None:
    builders = _Builders(["a", "b"])  # type: ignore[list-item]
    taken = {builders.take(0.0), builders.take(0.0)}
    assert taken == {"a", "b"}
    assert builders.take(0.0) is None


def test_who_waits_gets_the_one_that_is_given_back() -> None:
    builders = _Builders(["a"])  # type: ignore[list-item]
    worker = builders.take(0.0)
    assert worker is not None
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(builders.take(600.0)))
    waiting.start()
    time.sleep(0.05)  # it waits by now, or it finds what is given back: both are right
    builders.give(worker)
    waiting.join()
    assert found == ["a"]
