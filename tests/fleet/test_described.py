"""What a fleet's file may say, and the sentence for one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from subtune.cli import main
from subtune.core.errors import FleetError
from subtune.fleet import FleetModel, FleetTarget, read_fleet

MODEL, TARGET = '[[model]]\npath = "zoo:mlp"\n', '[[target]]\ntarget = "auto"\n'


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "fleet.toml"
        path.write_text(text)
        return path

    return write


def test_all_that_it_may_say(written, tmp_path):
    fleet = read_fleet(
        written(
            'budget = "2m"\ndatabase = "own.db"\noutput = "out"\ntopk = 3\n'
            '[[model]]\npath = "models/a.onnx"\npriority = 4\nshapes = { x = [1, 8] }\noutput = "first"\n'
            '[[model]]\npath = "zoo:resnet18?batch=8"\n'
            '[[target]]\n[[target]]\ntarget = "nvidia/nvidia-h100"\nname = "gpu"\n[[target]]\nthreads = 2\n'
        )
    )
    assert (fleet.budget_s, fleet.database, fleet.topk) == (120.0, str(tmp_path / "own.db"), 3)
    assert fleet.models == (
        FleetModel(str(tmp_path / "models/a.onnx"), "first.subtune", 4, {"x": (1, 8)}),
        FleetModel("zoo:resnet18?batch=8", "resnet18.subtune"),
    )
    assert fleet.targets == (
        FleetTarget("auto", None, "auto"),
        FleetTarget("nvidia/nvidia-h100", None, "gpu"),
        FleetTarget("auto", 2, "auto-2"),
    )
    assert fleet.artifact(fleet.targets[1], fleet.models[0]) == tmp_path / "out/gpu/first.subtune"


def test_one_target_needs_no_folder(written, tmp_path):
    fleet = read_fleet(written(MODEL + TARGET))
    assert fleet.artifact(fleet.targets[0], fleet.models[0]) == tmp_path / "mlp.subtune"
    assert fleet.budget_s is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model = ", "is no TOML: "),
        (TARGET, "has no [[model]]: give one or more"),
        (MODEL, "has no [[target]]: give one or more"),
        ("model = 3\n" + TARGET, "has model = 3: write [[model]] above the lines of each"),
        ("speed = 1\n" + MODEL + TARGET, "has 'speed', which nothing reads: it may have budget, database, output"),
        ("[[model]]\n" + TARGET, "[[model]] 1 of "),
        ("[[model]]\n" + TARGET, 'has no path: give path = "MODEL.onnx" or "zoo:NAME"'),
        (MODEL + "priority = 0\n" + TARGET, "has priority = 0: give a whole number above zero"),
        (MODEL + "shapes = { x = 3 }\n" + TARGET, "has shapes {'x': 3}: give them as shapes = { INPUT = [1, 3,"),
        (MODEL + 'output = "a/b"\n' + TARGET, "has output 'a/b': give a name without a folder"),
        (MODEL + MODEL + TARGET, "has the artifact mlp.subtune 2 times: give each its own output"),
        (MODEL + TARGET + TARGET, "has the target auto 2 times: give each its own name"),
        (MODEL + "[[target]]\ntarget = 3\n", "[[target]] 1 of "),
        (MODEL + TARGET + 'name = "a/b"\n', "has name 'a/b': give one that can be a folder's"),
        ('budget = "soon"\n' + MODEL + TARGET, "has budget 'soon' is not a duration: write 60s, 2m or 500ms"),
        ('topk = "x"\n' + MODEL + TARGET, "has topk = 'x': give a whole number above zero"),
    ],
)
def test_what_is_wrong_is_one_sentence(written, text, said):
    path = written(text)
    with pytest.raises(FleetError) as raised:
        read_fleet(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_that_is_missing(tmp_path, capsys):
    assert main(["tune-fleet", str(tmp_path / "no.toml")]) == 2
    assert "no.toml cannot be read: No such file or directory" in capsys.readouterr().err
