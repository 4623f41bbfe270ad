"""What a comparison says, in words, in JSON and as a page: whichever way it goes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from subtune.report.comparison import OP, SUBGRAPH, ComparedSubgraph, ComparisonReport, LeftOut, aligned
from subtune.tuning.ranking import Point, Ranking
from subtune.tuning.roofline import Placed, Position

AT = Position(flops=80_000, nbytes=1_000, flops_per_s=4e9, bytes_per_s=1e8)
OP_AT = replace(AT, nbytes=4_000)
POINTS = tuple(Point(f"c(i={i})", i * 1e-6, (5 - i) * 1e-6) for i in range(1, 5))
RANKING = Ranking(POINTS, -1.0, 0.75, searched=3)


def row(name: str, op_us: float, own_us: float, faster: str = "", uses: int = 1, **more: Any) -> ComparedSubgraph:
    winners = ("c(i=1)", "c(i=1)" if op_us == own_us else "c(i=4)")
    places = (Placed(OP_AT, 50e-6), Placed(AT, own_us * 1e-6))
    return ComparedSubgraph(name, uses, *winners, op_us * 1e-6, own_us * 1e-6, "", faster, *places, **more)


ROWS = (
    row("loses", 40, 30, SUBGRAPH, uses=2, ranking=RANKING),
    row("gains", 24, 25, OP),
    row("noise", 10.1, 10),
    row("same", 20, 20),
    replace(row("fails", 0, 5), note="invalid: does not apply"),
)
REPORT = ComparisonReport(
    ROWS,
    (LeftOut("half", 1, "the op was tuned in part"),),
    3e-3,
    2e-3,
    (LeftOut("pool", 2, "no epilogue"),),
    "net",
    "d",
)


def test_sentences() -> None:
    text = str(REPORT)
    assert (
        "4 of 5 subgraphs with an epilogue have another winner than their op, 80%; 1 were not tuned to the end" in text
    )
    assert "of the 4, the subgraph's winner is faster in 1, the op's in 1; 1 differ by no more than noise" in text
    assert "1 winners of ops do not run on their subgraph" in text
    # 2 uses of 10 us lost, 1 gained; of 2 * 30 + 25 + 10 + 20 + 5
    assert "tuning at op level loses 19.0 us of the 120.0 us that these subgraphs take in a run, 15.8%" in text
    assert "all differences together, it loses 19.1 us" in text
    assert "of the same candidates: -1.00, the median of 1 subgraphs; the same measurement repeated: 0.75" in text
    assert "4 have none: it was not asked for" in text
    assert "ratio 1.500" in text
    assert "left out: half, 1 uses: the op was tuned in part" in text
    assert "no op level: pool, 2 uses: no epilogue" in text


def test_where_ops_do_better_it_says_so() -> None:
    text = str(replace(REPORT, rows=ROWS[1:2], left_out=()))
    assert "the subgraph's winner is faster in 0, the op's in 1" in text
    assert "tuning at op level gains 1.0 us" in text
    assert "not tuned to the end" not in text


def test_where_nothing_differs_it_says_so() -> None:
    text = str(replace(REPORT, rows=ROWS[3:4]))
    assert "0 of 1 subgraphs" in text
    assert "both levels choose the same schedules: tuning at op level loses nothing here" in text
    assert "noise" not in text


def test_rooflines() -> None:
    """80 operations a byte against 40 of the device: the cast of the result makes 20 of the op 80."""
    text = str(REPORT)
    assert "a subgraph moves 0.25 times the bytes of its op alone (median); 5 of 5 are bound by something else" in text
    line = next(line for line in text.splitlines() if line.startswith("loses") and "->" in line and "%" in line)
    assert line.split()[1:] == ["4", "20.0", "40.0", "80%", "1", "80.0", "20.0", "67%", "memory", "->", "compute"]
    alike = replace(ROWS[0], op_placed=Placed(AT, 50e-6))
    assert "1 are bound by compute, as their ops" in str(replace(REPORT, rows=(alike,)))


def test_json() -> None:
    data = json.loads(REPORT.to_json())
    assert set(data) == {
        "rows", "left_out", "without_op", "op_model_s", "subgraph_model_s", "model", "device", "summary",
    }  # fmt: skip
    first = data["rows"][0]
    assert set(first) == {
        "name", "uses", "op_winner", "subgraph_winner", "op_s", "subgraph_s", "note", "faster", "op_placed", "placed",
        "ranking", "has_changed", "lost_s",
    }  # fmt: skip
    assert set(first["placed"]) == {
        "flops", "nbytes", "flops_per_s", "bytes_per_s", "intensity", "bound_s", "limit", "seconds", "reached",
    }  # fmt: skip
    assert set(first["ranking"]) == {"points", "tau", "repeated_tau", "searched", "searched_tau", "why"}
    assert first["ranking"]["points"][0] == {"candidate": "c(i=1)", "op_s": 1e-6, "subgraph_s": 4e-6}
    assert first["lost_s"] == pytest.approx(20e-6)
    assert (first["op_placed"]["limit"], first["placed"]["limit"]) == ("memory", "compute")
    assert set(data["summary"]) == {
        "subgraphs", "changed", "changed_share", "subgraph_faster", "op_faster", "op_fails", "lost_s",
        "clearly_lost_s", "clearly_lost_share", "ranked", "tau", "repeated_tau", "searched_tau", "bytes_ratio",
        "other_limit",
    }  # fmt: skip
    assert data["summary"]["changed_share"] == pytest.approx(0.8)
    assert data["summary"]["searched_tau"] is None


def test_without_a_row() -> None:
    report = ComparisonReport((), (), 0.0, 0.0)
    assert "nothing to compare" in str(report)
    assert json.loads(report.to_json())["summary"]["changed_share"] == 0.0


def test_columns() -> None:
    assert aligned([["a", "b", "c"], ["long", "12", "x"]]) == ["a      b  c", "long  12  x"]


class Page(HTMLParser):
    """Fails where an element is not closed; collects what a page would fetch, and its ids."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data") and not str(value).startswith("#"):
                self.fetched.append(str(value))
            if name == "id":
                self.ids.append(str(value))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(report: ComparisonReport) -> str:
    pytest.importorskip("matplotlib")
    from subtune.report.comparison_page import page

    return page(report)


def test_a_page_needs_nothing_else() -> None:
    text = page_of(REPORT)
    found = Page(text)
    assert found.fetched == []
    assert "http" not in text
    assert "<script" not in text
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert len(found.ids) == len(set(found.ids)), "ids of three drawings are the page's"
    named = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    assert {one or other for one, other in named} <= set(found.ids)


def test_a_page_has_the_plots_the_tables_and_the_sentences() -> None:
    text = page_of(REPORT)
    drawings = [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.S)]
    assert [one.get("aria-label") for one in drawings] == [
        "time lost by tuning at op level", "time on the op alone against time on the subgraph",
        "op and subgraph below the roofline",
    ]  # fmt: skip
    words = " ".join(Page(text).words)
    assert all(sentence in words for sentence in [*REPORT.sentences(), *REPORT.omissions()])
    assert all(one.name in words for one in ROWS)
    assert "tau -1.00" in words


def test_a_page_is_light_or_dark() -> None:
    """No drawing has a colour of its own: all are variables, and every variable has two values."""
    text = page_of(REPORT)
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, re.S))
    assert re.findall(r"#[0-9a-f]{6}\b", drawings) == []
    light, dark = text.split("prefers-color-scheme: dark")
    for name in set(re.findall(r"var\(--(\w+)\)", text)):
        assert f"--{name}: #" in light
        assert f"--{name}: #" in dark


def test_names_are_escaped() -> None:
    text = page_of(replace(REPORT, model="<b>&", rows=(replace(ROWS[0], name="<i>x</i>"),)))
    assert "<b>" not in text
    assert "<i>" not in text
    assert "&lt;i&gt;x" in text


def test_a_page_of_many_subgraphs_is_small() -> None:
    points = tuple(Point(f"c(i={i})", i * 1e-6, i * i * 1e-6) for i in range(1, 17))
    rows = tuple(replace(ROWS[0], name=f"subgraph_{i}", ranking=replace(RANKING, points=points)) for i in range(300))
    text = page_of(replace(REPORT, rows=rows))
    assert len(text.encode()) < 5e6
    assert "Shown are 30 of 300, those with the most time." in text
    assert all(f"subgraph_{i}<" in text for i in range(300)), "the tables have all"


def test_a_page_without_a_row_says_why() -> None:
    text = page_of(replace(REPORT, rows=()))
    Page(text)
    assert "nothing to compare" in text
    assert "the op was tuned in part" in text
    assert "<svg" not in text


def test_what_cannot_be_drawn_is_not() -> None:
    """Nothing was ranked, nothing differs, and a unit whose operations TVM cannot count has no place below a roof."""
    one = replace(ROWS[3], placed=Placed(replace(AT, flops=0), 20e-6))
    assert "<svg" not in page_of(replace(REPORT, rows=(one,)))
