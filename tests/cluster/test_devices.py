"""Which device a run on a cluster is for."""

from __future__ import annotations

import pytest

from subtune.backends import device_of
from subtune.cluster.devices import device_among, places_for
from subtune.cluster.facts import Facts
from subtune.core.errors import TargetError
from subtune.measure.site import HERE, Site

ONE, TWO = device_of(threads=1), device_of(threads=2)


def facts(host, device, why="", gpus=0):
    places = tuple(Site(gpu=number) for number in range(gpus)) or HERE
    keys = tuple(str(place.gpu) for place in places)
    return Facts(host, "1", "x", device, why, places if device else (), keys if device else ())


def own():
    return TWO


def test_the_only_kind_there_is():
    assert device_among([facts("a", ONE), facts("b", ONE), facts("c", None, "no GPU")], "auto", own, "here") == ONE


def test_of_several_kinds_the_drivers_own():
    assert device_among([facts("a", ONE), facts("b", TWO)], "auto", own, "here") == TWO


def test_several_kinds_none_of_which_is_the_drivers():
    def strange():
        raise TargetError("no such thing")

    with pytest.raises(TargetError, match=r"are of 2 kinds, whose times do not compare .*: name one with --target"):
        device_among([facts("a", ONE), facts("b", TWO)], "auto", strange, "here")


def test_no_node_has_it():
    with pytest.raises(TargetError, match="no node of here has a device of target cuda: no GPU"):
        device_among([facts("a", None, "no GPU"), facts("b", None, "no GPU")], "cuda", own, "here")


def test_places_are_named_by_machine_and_device():
    assert places_for(ONE, facts("a", TWO)) == places_for(ONE, facts("a", None)) == {}
    assert places_for(ONE, facts("a", ONE)) == {"a/None": (0, HERE[0])}
    assert places_for(ONE, facts("a", ONE, gpus=2)) == {"a/0": (0, Site(gpu=0)), "a/1": (1, Site(gpu=1))}
