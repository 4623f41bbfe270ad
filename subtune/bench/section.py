"""The pieces of the performance page: what a run becomes, and Markdown's tables and folds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """What a run becomes: a heading, Markdown below it, and a chart, "" where there is nothing to draw."""

    heading: str
    text: str
    chart: str = ""
    caption: str = ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column to the left, the others to the right."""
    lines = [head, [":--", *("--:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def details(summary: str, text: str) -> str:
    """Folded away; a click opens it, on GitHub as in the built pages."""
    return f'<details markdown="1">\n<summary>{summary}</summary>\n\n{text}\n\n</details>'
