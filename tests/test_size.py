"""Modules of at most 350 lines; functions of at most 60, or a comment `# long: why` above or at their beginning."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for room in ("subtune", "frontends", "passes", "models") for path in (ROOT / room).rglob("*.py"))
LINES, FUNCTION_LINES = 350, 60


def too_long(node: ast.AST, lines: list[str]) -> Iterator[str]:
    """Functions without a reason; those inside one that has a reason are not asked."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            head = lines[max(0, first - 2) : child.body[0].lineno]
            if any(line.strip().startswith("# long: ") for line in head):
                continue
            if (count := (child.end_lineno or 0) - child.lineno + 1) > FUNCTION_LINES:
                yield f"{child.name} has {count} lines"
        yield from too_long(child, lines)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_one_idea_each(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    assert len(lines) <= LINES, f"{path}: {len(lines)} lines, more than {LINES}: split it along its ideas"
    found = list(too_long(ast.parse(text), lines))
    assert not found, f"{path}: {'; '.join(found)}, more than {FUNCTION_LINES}: split, or say why in `# long: ...`"


def test_a_reason_counts_and_nothing_else() -> None:
    body = "\n".join(["    x = 1"] * 70)
    for head, is_found in (
        ("def f():", True),
        ("# long: one table\ndef f():", False),
        ("def f():\n    # long: one table", False),
        ("# long\ndef f():", True),
        ("# long: one table\n@g\ndef f():", False),
        ("# long: other\n\ndef f():", True),
    ):
        text = f"{head}\n{body}\n"
        assert bool(list(too_long(ast.parse(text), text.splitlines()))) == is_found, head
