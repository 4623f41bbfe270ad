"""The page in headless Chromium: drawn without an error, with its tooltips, and laid out on a phone and on a desk.

Skipped without Playwright (`pip install playwright`) or a Chromium: `CHROMIUM` names one that is not in the path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from subtune import models
from subtune.artifact import manifest as manifests
from subtune.artifact.account import read_account
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from subtune.report.page import document
from tests.whole import IS_WHOLE

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("altair")
pytest.importorskip("vl_convert")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
NAMES = ("resnet18", "bert", "unet") if IS_WHOLE else ("resnet18", "bert")
WIDTHS = (400, 1400)
DRAWN = "html[data-drawn]"

OVERLAPS = """selector => {
  const boxes = [...document.querySelectorAll(selector)].map(one => one.getBoundingClientRect());
  const found = [];
  for (let i = 0; i < boxes.length; i++)
    for (let j = i + 1; j < boxes.length; j++) {
      const [a, b] = [boxes[i], boxes[j]];
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
        found.push([i, j]);
    }
  return found;
}"""
WIDER = """() => [...document.querySelectorAll("body *")].filter(one => {
  if (one.closest(".scroll, .wide, template") || one.closest("svg") !== null) return false;
  const box = one.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map(one => one.tagName + "." + one.className)"""
CLIPPED = """() => [...document.querySelectorAll(".graph text")].filter(text => {
  const box = text.getBoundingClientRect(), body = text.parentNode.querySelector(".body").getBoundingClientRect();
  return box.left < body.left - 1 || box.right > body.right + 1;
}).map(text => text.textContent)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        try:
            found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except sync_api.Error as e:
            pytest.skip(f"no Chromium to start: {str(e).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture(scope="module", params=NAMES)
def html(
    request: pytest.FixtureRequest, browser: Any, workers: LocalMeasurer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The page of a reduced model, tuned with two candidates a subgraph."""
    folder = tmp_path_factory.mktemp(request.param)
    path = folder / "m.subtune"
    model = models.reduced(request.param)
    compile_model(model, path, topk=2, verify=False, threads=2, database=folder / "t.db", measurer=workers)
    manifest = manifests.read(path)
    (folder / "page.html").write_text(document.page(manifest, read_account(path, manifest)), encoding="utf-8")
    return folder / "page.html"


class Opened:
    """The page at a width, with whatever the browser complained of."""

    def __init__(self, browser: Any, html: Path, width: int = 1400, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda said: self._note(said.type, said.text))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(html.as_uri())
        self.page.wait_for_selector(DRAWN, state="attached")

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_it_opens_and_is_laid_out(browser: Any, html: Path, width: int) -> None:
    assert html.stat().st_size < 5e6
    with Opened(browser, html, width) as opened:
        page = opened.page
        assert opened.complaints == []
        assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
        charts = page.locator(".chart")
        assert charts.count() >= 5
        assert int(page.get_attribute("html", "data-drawn")) == charts.count()
        for i in range(charts.count()):
            assert charts.nth(i).locator("svg [role='graphics-symbol'], svg .mark-group").count() > 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(WIDER) == []
        assert page.evaluate(CLIPPED) == []
        for selector in (".graph .body", ".card", "body > *", "section > *", ".chart"):
            assert page.evaluate(OVERLAPS, selector) == [], selector
        beside = page.evaluate(
            "() => { const [a, b] = ['.frame', '.panel'].map(s => document.querySelector(s).getBoundingClientRect());"
            " return a.right <= b.left; }"
        )
        assert beside == (width > 1000), "one column on a phone, two on a desk"


@pytest.mark.slow
def test_pointing_explains(browser: Any, html: Path) -> None:
    """A box that is pointed at, one that is reached by the keyboard, one that is clicked, and one in a chart."""
    with Opened(browser, html) as opened:
        page = opened.page
        boxes = page.locator(".graph .node")
        assert page.locator("#panel h3").inner_text()  # the slowest, before anybody points
        boxes.nth(1).hover()
        title = page.locator("#panel h3").inner_text()
        assert page.locator("#panel .ops li").count() >= 1
        assert page.locator(".edge.near").count() >= 1
        boxes.nth(1).click()
        boxes.nth(0).hover()
        page.mouse.move(1, 1)
        assert page.locator("#panel h3").inner_text() == title, "what was clicked stays"
        boxes.nth(2).focus()
        page.keyboard.press("Enter")
        assert boxes.nth(2).get_attribute("class").endswith("chosen")
        bar = page.locator("#time .mark-rect path").first
        bar.scroll_into_view_if_needed()
        bar.hover()
        tip = page.locator("#vg-tooltip-element.visible")
        tip.wait_for()
        said = tip.inner_text()  # before the click, which scrolls to the partition: the pointer leaves the bar
        assert "subgraph" in said
        assert "share" in said
        bar.click()
        chosen = page.locator(".graph .chosen").get_attribute("data-subgraph")
        assert chosen in said
        assert chosen == page.locator("#panel .name").inner_text()
        assert opened.complaints == []


@pytest.mark.slow
def test_zoom(browser: Any, html: Path) -> None:
    with Opened(browser, html) as opened:
        page = opened.page
        width = lambda: page.evaluate("document.querySelector('.graph').getBoundingClientRect().width")  # noqa: E731
        before = width()
        page.locator("[data-zoom=in]").click()
        assert width() == pytest.approx(1.25 * before, abs=2)
        page.locator("[data-zoom=out]").click()
        page.locator("[data-zoom=out]").click()
        assert width() == pytest.approx(0.8 * before, abs=2)
        page.locator("[data-zoom=fit]").click()
        assert width() == pytest.approx(before, abs=2)
        page.locator(".scroll").hover()
        page.keyboard.down("Control")
        page.mouse.wheel(0, -100)
        page.keyboard.up("Control")
        page.wait_for_function("before => document.querySelector('.graph').clientWidth > before + 5", arg=before)


@pytest.mark.slow
def test_dark_and_printed(browser: Any, html: Path) -> None:
    """Text and ground change places in the dark, in charts too; on paper, what is clicked or scrolled is not there."""
    shades = {}
    for scheme in ("light", "dark"):
        with Opened(browser, html, scheme=scheme) as opened:
            ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
            label = opened.page.evaluate("getComputedStyle(document.querySelector('#time text')).fill")
            shades[scheme] = (_light(ground), _light(label))
    assert shades["light"][0] > 0.9 > 0.6 > shades["light"][1]
    assert shades["dark"][0] < 0.2 < 0.4 < shades["dark"][1]
    with Opened(browser, html, scheme="dark") as opened:
        page = opened.page
        page.emulate_media(media="print")
        assert _light(page.evaluate("getComputedStyle(document.body).backgroundColor")) == 1.0
        assert not page.locator(".tools").is_visible()
        assert not page.locator(".panel").is_visible()
        frame, graph = (page.locator(one).bounding_box() for one in (".scroll", ".graph"))
        assert graph["height"] <= frame["height"] + 1, "all of the partition is on the paper"
        assert graph["width"] <= frame["width"] + 1


def _light(colour: str) -> float:
    """Of `rgb(r, g, b)`, from 0 to 1."""
    return sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(",")[:3]) / (3 * 255)
