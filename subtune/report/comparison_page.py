"""A comparison as one HTML page that needs nothing else: no network, no script; light or dark as the reader has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from subtune.report.comparison import ComparedSubgraph, ComparisonReport
from subtune.report.comparison_plots import losses_plot, rankings_plot, roofline_plot

_PANELS = 30
"""Of rankings, those of the subgraphs that take longest: a page of hundreds is not read."""
_BARS = 40
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1f2328; --faint: #59636e; --grid: #d1d9e0;
  --op: #bc4c00; --own: #0550ae }
@media (prefers-color-scheme: dark) {
  :root { --page: #0d1117; --text: #e6edf3; --faint: #9198a1; --grid: #3d444d; --op: #ffa657; --own: #79c0ff } }
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; max-width: 75rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
svg { width: 100%; max-width: 60rem; height: auto } figure { margin: 1rem 0 }
figcaption, .about { color: var(--faint) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--grid); text-align: right; white-space: nowrap }
th:nth-child(2), td:nth-child(2), th:last-child, td:last-child { text-align: left }
"""
_RANKINGS = """Each dot is one schedule that both may take, timed in turns on either. Dots on a rising line mean that
what is good for the operator alone is good for the subgraph. Tau is 1 for the same order, 0 for unrelated ones, -1 for
the reverse. A square is what tuning the operator chooses, a diamond what tuning the subgraph chooses."""
_ROOFLINE = """An arrow leads from the operator alone, which stores its sums, to the subgraph, which stores what its
epilogue makes of them. To the right: more operations for each byte. Up: faster. A kernel is above its roof only where
its data lie in a cache, or its algorithm does with fewer operations."""
_LOSSES = """What a run of the model takes longer with the schedules that are best for the operators alone. To the left
of zero, the operator's winner was the faster one. Grey bars are no more than noise."""


def page(report: ComparisonReport) -> str:
    """The whole page as text."""
    title = f"Tuning operators against tuning subgraphs: {report.model}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="about">{escape(report.device)}</p>',
        _list(report.sentences()),
        *_figures(report),
    ]
    if report.rows:
        body += ["<h2>Winners, timed on the subgraph</h2>", _table(report.winners_table())]
        body += ["<h2>Positions under the roofline</h2>", _table(report.roofline_table())]
    if report.left_out or report.without_op:
        body += ["<h2>What is not compared</h2>", _list(report.omissions())]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return "\n".join(['<!DOCTYPE html><html lang="en"><head>', head, "</head><body>", *body, "</body></html>", ""])


def _figures(report: ComparisonReport) -> Iterator[str]:
    """Those plots for which there is something to draw."""
    numbered = list(enumerate(report.rows, 1))
    lost = [one for one in numbered if one[1].has_changed and one[1].op_s]
    if lost:
        shown = sorted(lost, key=lambda one: -abs(one[1].lost_s))[:_BARS]
        yield from _figure("Time lost by tuning at op level", losses_plot(shown), _LOSSES, len(shown), len(lost))
    ranked = [one for one in numbered if one[1].ranking.tau is not None]
    if ranked:
        shown = sorted(sorted(ranked, key=_taken)[:_PANELS], key=lambda one: one[0])
        yield from _figure("The same candidates on both", rankings_plot(shown), _RANKINGS, len(shown), len(ranked))
    placed = [one for one in numbered if _has_place(one[1])]
    if placed:
        yield from _figure("Roofline", roofline_plot(placed), _ROOFLINE, len(placed), len(placed))


def _taken(one: tuple[int, ComparedSubgraph]) -> float:
    return -one[1].uses * one[1].subgraph_s


def _has_place(row: ComparedSubgraph) -> bool:
    """Whether it has a place in a logarithmic plot: something is computed, and both units were timed."""
    return all(one.flops_per_s for one in (row.op_placed, row.placed))


def _figure(title: str, plot: str, caption: str, shown: int, of: int) -> tuple[str, ...]:
    if shown < of:
        caption += f" Shown are {shown} of {of}, those with the most time."
    return (f"<h2>{title}</h2>", "<figure>", plot, f"<figcaption>{caption}</figcaption>", "</figure>")


def _table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the header; rows are numbered as in the plots."""
    lines = []
    for number, cells in enumerate(rows):
        cell = "td" if number else "th"
        shown = [str(number) if number else "#", *cells]
        lines.append("<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in shown) + "</tr>")
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
