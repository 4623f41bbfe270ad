"""The page of an artifact as text: what it says, that it is whole HTML, and that nothing in it is from elsewhere."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from subtune.core.account import Account
from subtune.core.errors import SubtuneError
from subtune.core.manifest import Manifest
from subtune.report.page import document
from tests.report.made_up import ACCOUNT, EVIL, MANIFEST, OF_MANY_SHAPES, SHAPED

VOID = {"meta", "br", "link"}


class Elements(HTMLParser):
    """Every element that is opened is closed in its turn; `texts` are what is shown, by the innermost element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))


def parsed(account: Account | None, manifest: Manifest = MANIFEST) -> tuple[str, Elements]:
    for module in ("altair", "vl_convert"):
        pytest.importorskip(module)
    text = document.page(manifest, account)
    elements = Elements()
    elements.feed(text)
    assert elements.open == []
    return text, elements


def shown(elements: Elements) -> str:
    return " ".join(text for tag, text in elements.texts if tag not in ("script", "style"))


def test_it_says_all() -> None:
    _, elements = parsed(ACCOUNT)
    said = shown(elements)
    for part in (
        "3.77x",  # 83 us by 22
        "faster than the default",
        f"a note {EVIL}",
        "matmul + relu",
        f"sum_0 reads {EVIL}",
        "a view costs nothing",
        "gemm(m=99)",
        "the products need not be stored",
        "taken",
        "and 1 more alike",
        "The arena takes 512 B",
        "30 s of tuning",
    ):
        assert part in said, part


def test_nothing_comes_from_elsewhere() -> None:
    text, elements = parsed(ACCOUNT)
    for tag, attributes in elements.seen:
        assert "src" not in attributes, tag
        assert "href" not in attributes, tag
    policy = next(a["content"] for tag, a in elements.seen if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    assert len(text.encode()) < 5e6


def test_every_chart_has_its_place() -> None:
    text, elements = parsed(ACCOUNT)
    specs = json.loads(next(found for tag, found in elements.texts if tag == "script" and found.startswith("{")))
    places = {attributes["id"] for _, attributes in elements.seen if attributes.get("class") == "chart"}
    wanted = {"time", "bounds", "roofline-chart", "search-time", "predictions", "failures", "live", "arena"}
    assert set(specs) == places == wanted
    ids = [attributes["id"] for _, attributes in elements.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(re.search(rf'<template id="node-{i}">', text) for i in range(len(ACCOUNT.nodes)))


def charts(elements: Elements) -> dict[str, list[dict[str, object]]]:
    """The rows of every chart."""
    specs = json.loads(next(found for tag, found in elements.texts if tag == "script" and found.startswith("{")))
    return {name: (one.get("data") or one["layer"][-1]["data"])["values"] for name, one in specs.items()}


def test_charts_have_the_figures() -> None:
    rows = charts(parsed(ACCOUNT)[1])
    assert [(row["subgraph"], row["ms"]) for row in rows["time"]] == [("fused_matmul", 0.02), ("tir_sum", 0.002)]
    of_gemm = {row["what"]: row["us"] for row in rows["bounds"] if row["subgraph"] == "fused_matmul"}
    assert of_gemm == pytest.approx({"roofline": 5.0, "tuned": 10.0, "default": 40.0})
    assert [row["MiB"] for row in rows["live"]] == pytest.approx([256 / 2**20, *[512 / 2**20] * 3], rel=1e-5)
    assert [(row["kind"], row["candidates"]) for row in rows["failures"]] == [("build", 1)]
    assert {row["state"] for row in rows["search-time"]} == {"timed", "failed"}


def test_a_model_of_many_shapes() -> None:
    _, elements = parsed(SHAPED, OF_MANY_SHAPES)
    said = shown(elements)
    for part in (
        "1 µs",
        "n=1, m=1",
        "24 µs",
        "Times are those of n=8, m=3.",
        "2*n varies; 2 kernels ship",
        "5 to 16",
    ):
        assert part in said, part
    rows = charts(elements)
    assert {row["others"] for row in rows["latency"]} == {"m=1", "m=3"}
    assert [row["ms"] for row in rows["latency"] if row["others"] == "m=3"] == pytest.approx(
        [3e-3 * n for n in range(1, 9)]
    )
    kernels = [(row["kernel"], row["extent"], row["us"], row["what"]) for row in rows["shaped-0"]]
    assert (f"gemm{EVIL}", 16, 20.0, "does not ship") in kernels
    assert [row[1:3] for row in kernels if row[0] == "gemm(m=2)"] == [(2, 1.0), (16, 30.0)]
    assert "shaped-1" not in rows, "two extents are no line"


def test_colours_follow_the_readers_scheme() -> None:
    """Charts have no colours of their own, and every variable has a value in either scheme."""
    _, elements = parsed(ACCOUNT)
    specs = next(found for tag, found in elements.texts if tag == "script" and found.startswith("{"))
    assert not re.search(r'"#[0-9a-fA-F]{3,8}"', specs)
    style = next(found for tag, found in elements.texts if tag == "style")
    light, dark = style.split("prefers-color-scheme: dark", 1)
    for name in set(re.findall(r"var\((--[\w-]+)\)", specs + style)) - {"--kind", "--key"}:
        assert f"{name}:" in light, name
        assert f"{name}:" in dark.split("@media")[0], name
    assert "@media print" in style


def test_without_an_account_it_says_what_the_manifest_says() -> None:
    for account in (None, Account()):
        _, elements = parsed(account)
        said = shown(elements)
        assert "holds no account of its tuning" in said
        assert "gemm(m=8)" in said


def test_what_was_not_measured_is_left_out() -> None:
    untuned = tuple(replace(one, tuned_s=0.0, default_s=0.0, candidates=()) for one in ACCOUNT.subgraphs)
    _, elements = parsed(replace(ACCOUNT, subgraphs=untuned, decisions=(), memory=Account().memory))
    places = {attributes["id"] for _, attributes in elements.seen if attributes.get("class") == "chart"}
    assert places == {"failures"}
    assert "faster than the default" not in shown(elements)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "find_spec", lambda name: None if name == "altair" else object())
    with pytest.raises(
        SubtuneError, match=r"drawn with altair, which is not installed: pip install 'subtune\[report\]'"
    ):
        document.page(MANIFEST, ACCOUNT)
