"""Kernels in several modules: the same results, and no symbol that others could take for their own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tvm

from subtune import models
from subtune.artifact.random_inputs import random_inputs
from subtune.backends.cpu.lowering import bounded
from subtune.backends.cpu.lowering.parts import EXPORTED, parts
from subtune.backends.host import link
from tests.backends.cpu.test_straight_line import compiled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are not forked elsewhere")


def test_results_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = models.reduced("mobilenet_v2"), []

    def recorded(mod: tvm.IRModule, count: int) -> list[tvm.IRModule]:
        made.append(parts(mod, count))
        return made[-1]

    monkeypatch.setattr(bounded, "parts", recorded)
    results = []
    for count in (1, 3):
        monkeypatch.setattr(bounded, "usable_cores", lambda count=count: count)
        artifact = compiled(model, tmp_path / f"{count}.subtune")
        results.append(artifact.run(random_inputs(artifact.inputs)))
    assert [len(modules) for modules in made] == [1, 3]
    one, three = ({g.name_hint for m in modules for g, _ in m.functions_items()} for modules in made)
    assert one == three
    for name, array in results[0].items():
        np.testing.assert_array_equal(results[1][name], array)
    for part in made[1][1:]:
        assert all(EXPORTED in func.attrs for _, func in part.functions_items())


def test_few_kernels_stay_together() -> None:
    func = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0))
    mod = tvm.IRModule({f"k{i}": func for i in range(7)})
    assert len(parts(mod, 2)) == 1


def test_objects_mean_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    class Done:
        returncode = 0

    monkeypatch.setattr(link.subprocess, "run", lambda command, **_: commands.append(command) or Done())
    for files in (["a.o"], ["a.o", "b.o"]):
        link.link_shared("x.so", files)
    assert not any("Bsymbolic" in word for word in commands[0])
    assert any("-Bsymbolic" in word for word in commands[1])
