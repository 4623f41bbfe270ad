"""The examples in docstrings and in the README run as they are written."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"

DOCUMENTED = {
    "subtune.compile": "compile",
    "subtune.artifact.model": "load",
    "subtune.frontends.dispatch": "load",
    "subtune.passes.partition": "partition",
    "subtune.policy": "candidates",
    "subtune.templates": "schedule",
    "subtune.tuning.search": "tune_subgraph",
}
"""By module, a function whose docstring must hold an example: the pieces that are of use alone."""


def blocks(text: str) -> list[tuple[int, str]]:
    """The Python blocks of a Markdown file, each with the number of its first line."""
    found = re.finditer(r"^```(?:python|py)\b[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples may write files, and may use the user's database: both are the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = {test.name: test for test in finder.find(module, module.__name__) if test.examples}
    assert f"{name}.{DOCUMENTED[name]}" in tests, "it has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in tests.values():
        report: list[str] = []
        runner.run(test, out=report.append)
        assert not report, "".join(report)


@pytest.mark.parametrize(("line", "code"), blocks(README.read_text(encoding="utf-8")))
def test_readme(line: int, code: str) -> None:
    exec(compile("\n" * (line - 1) + code, str(README), "exec"), {"__name__": "readme"})


def test_blocks_are_found() -> None:
    text = "a\n```python\nx = 1\ny = 2\n```\n```\nno\n```\n```sh\nls\n```\n```py\nz = 3\n```\n"
    assert blocks(text) == [(3, "x = 1\ny = 2\n"), (13, "z = 3\n")]
