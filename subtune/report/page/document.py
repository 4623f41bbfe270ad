"""The whole page: sections in their order, the style, the library that draws, and the data, in one text."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator
from functools import cache
from html import escape
from importlib.util import find_spec
from typing import Any

from subtune.core.account import Account
from subtune.core.errors import SubtuneError
from subtune.core.manifest import Manifest
from subtune.report.page import sections, shapes
from subtune.report.page.partition import partition

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data:"
"""What the page may do: nothing but itself. Vega compiles its expressions, which counts as `eval`."""
_NO_ACCOUNT = """This artifact holds no account of its tuning: it was written by an earlier version of subtune. Compile
the model again to see its partition and its search."""


def check_extra() -> None:
    """Raise SubtuneError where the libraries that draw are not installed."""
    missing = [name for name in ("altair", "vl_convert") if find_spec(name) is None]
    if missing:
        raise SubtuneError(
            f"the page is drawn with {' and '.join(missing)}, which is not installed: pip install 'subtune[report]'"
        )


def page(manifest: Manifest, account: Account | None) -> str:
    """The page of an artifact as text.

    Args:
        account: as `subtune.artifact.account.read_account` gives it; without one, the page says what the manifest says.

    Raises:
        SubtuneError: the extra `report` is not installed.
    """
    check_extra()
    body = [*_head(manifest, account)]
    specs: list[sections.Figure] = []
    for one in _sections(manifest, account):
        body.append(f'<section id="{one.id}"><h2>{escape(one.title)}</h2>')
        body += [f'<p class="about">{escape(one.about)}</p>'] if one.about else []
        for part in one.parts:
            if isinstance(part, sections.Figure):
                specs.append(part)
                body.append(_placeholder(part))
            else:
                body.append(part)
        body.append("</section>")
    body.append(f'<footer class="about">{escape(_footer(manifest))}</footer>')
    title = f"{manifest.name}: subtune's report"
    head = [
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_resource('page.css')}</style>",
    ]
    data = json.dumps({one.id: one.spec for one in specs}, separators=(",", ":")).replace("</", "<\\/")
    scripts = [
        f'<script type="application/json" id="charts">{data}</script>',
        f'<script type="module">{_library()}</script>',
        f'<script type="module">{_resource("page.js")}</script>',
    ]
    parts = ["<!DOCTYPE html>", '<html lang="en"><head>', *head, "</head><body>", *body, *scripts, "</body></html>", ""]
    return "\n".join(parts)


def _sections(manifest: Manifest, account: Account | None) -> Iterator[sections.Section]:
    if account is None or not account.subgraphs:
        yield sections.Section("none", "What this artifact holds", _NO_ACCOUNT, (sections.kernels(manifest),))
        if account is not None and (use := sections.memory(manifest, account)).parts:
            yield use
        return
    if (one := shapes.latency(manifest, account)).parts:
        yield one
    if drawn := partition(account):
        said = sections.PARTITION + shapes.greatest(manifest)
        yield sections.Section("partition", "The partition", said, (drawn,))
    for made in (
        sections.times, sections.roofline, shapes.kernels, sections.decisions, sections.search, sections.memory,
    ):  # fmt: skip
        if (one := made(manifest, account)).parts:
            yield one


def _head(manifest: Manifest, account: Account | None) -> Iterator[str]:
    """What was gained, for what machine, and at what cost."""
    yield f"<header><h1>{escape(manifest.name)}</h1>"
    inputs, outputs = (", ".join(map(str, specs)) for specs in (manifest.inputs, manifest.outputs))
    yield f'<p class="about">{escape(inputs)} → {escape(outputs)}</p>'
    yield f'<p class="about">{escape(manifest.device)}, {manifest.threads} threads</p></header>'
    cards = [*shapes.headline(manifest, account), *sections.headline(manifest, account)]
    yield '<div class="cards">' + "".join(_card(*card) for card in cards) + "</div>"
    if account is not None and account.notes:
        yield '<ul class="notes">' + "".join(f"<li>{escape(note)}</li>" for note in account.notes) + "</ul>"


def _card(value: str, name: str, more: str) -> str:
    return f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(more)}</small></div>'


def _placeholder(figure: sections.Figure) -> str:
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    keys = "".join(f'<li class="key-{key}">{escape(key)}</li>' for key in figure.keys)
    legend = f'<ul class="keys">{keys}</ul>' if keys else ""
    return (
        f'<figure>{legend}<div class="chart" id="{figure.id}" role="img" aria-label="{escape(figure.title)}"></div>'
        f"{caption}</figure>"
    )


def _footer(manifest: Manifest) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions)
    source = manifest.source.model or "a model in memory"
    return f"Compiled from {source}. {versions}. Latencies are those of the tuning run, each kernel alone."


def _resource(name: str) -> str:
    return importlib.resources.files("subtune.report.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script of 0.9 MB; making it takes some seconds, once a process."""
    import vl_convert

    bundle: Any = vl_convert.javascript_bundle  # its annotations know of no default
    return str(bundle(snippet=None)).replace("</script", "<\\/script")
