"""Pieces of HTML for pages and notebooks: text in, escaped text out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_CELL = "padding:.2em .8em;border:0;white-space:nowrap;text-align:"
_ROWS = 20
"""Of a table in a notebook."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that a page's style sheet aligns."""
    top = "".join(f"<th>{escape(one)}</th>" for one in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(one)}</td>" for one in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def notebook(title: str, lines: Sequence[str], head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A block for a notebook, which has no style sheet of ours: a title, lines of text, and a table of the first rows.

    The first and the last column of the table are text, the others are figures.
    """
    parts = [f'<div style="overflow-x:auto"><strong style="font-size:1.15em">{escape(title)}</strong>']
    parts += [f'<div style="opacity:.75">{escape(line)}</div>' for line in lines if line]
    if rows:
        shown = [_row("th", head), *(_row("td", row) for row in rows[:_ROWS])]
        parts.append(f'<table style="margin:.6em 0;font-variant-numeric:tabular-nums">{"".join(shown)}</table>')
    if len(rows) > _ROWS:
        parts.append(f'<div style="opacity:.75">and {len(rows) - _ROWS} more</div>')
    return "".join([*parts, "</div>"])


def _row(cell: str, texts: Sequence[str]) -> str:
    last = len(texts) - 1
    sides = ["left" if i in (0, last) else "right" for i in range(len(texts))]
    cells = (f'<{cell} style="{_CELL}{side}">{escape(text)}</{cell}>' for side, text in zip(sides, texts, strict=True))
    return f"<tr>{''.join(cells)}</tr>"
