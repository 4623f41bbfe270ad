"""`subtune completion`: what the shells make of the scripts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from subtune.cli import main
from subtune.cli.main import build_parser

COMMANDS = sorted(build_parser()._subparsers._group_actions[0].choices)  # type: ignore[union-attr, arg-type]


@pytest.fixture
def script(capsys, tmp_path):
    def write(shell: str) -> Path:
        assert main(["completion", shell]) == 0
        path = tmp_path / f"subtune.{shell}"
        path.write_text(capsys.readouterr().out)
        return path

    return write


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_in_it(script, shell):
    text = script(shell).read_text()
    assert all(command in text for command in COMMANDS)
    assert all(option in text for option in ("fail-below", "standalone", "weights-limit"))


BASH = """
source {script}
COMP_WORDS=({line}) COMP_CWORD=$(({count} - 1)) COMP_LINE="{text}" COMP_POINT=${{#COMP_LINE}}
_shtab_subtune
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["com"], ["compare", "compile", "completion"]),
        (["bench", "--fail"], ["--fail-below"]),
        (["bench", "--suite", "die"], ["dietcode"]),
        (["db", "g"], ["gc"]),
        (["compile", "--weights"], ["--weights-limit"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["run", "mod"], ["model.subtune"]),
    ],
)
def test_bash(script, tmp_path, words, expected):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model.subtune").mkdir()
    line = " ".join(["subtune", *(word or "''" for word in words)])
    text = BASH.format(script=script("bash"), line=line, count=len(words) + 1, text=line)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, cwd=tmp_path / "here")
    assert done.stderr == ""
    assert sorted(done.stdout.split()) == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh(script):
    assert subprocess.run(["zsh", "-n", script("zsh")], capture_output=True, text=True).stderr == ""


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish(script):
    command = f"source {script('fish')}; complete --do-complete 'subtune com'"
    done = subprocess.run(["fish", "--no-config", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
    assert sorted(line.split("\t")[0] for line in done.stdout.splitlines()) == ["compare", "compile", "completion"]


def test_other_shells_are_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "csh"])
    assert stopped.value.code == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err
