"""Parts of the site that are made from the source while it is built: commands, error messages, the source map.

A page asks for a part with `<!-- generated: NAME -->`.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "subtune": ROOT / "subtune",
    "subtune.frontends": ROOT / "frontends",
    "subtune.passes": ROOT / "passes",
    "subtune.models": ROOT / "models",
}
_WIDTH = 100


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for every page."""
    return re.sub(r"^( *)<!-- generated: (\w+) -->", lambda f: indent(GENERATED[f[2]](), f[1]), markdown, flags=re.M)


def commands() -> str:
    """Every command's help, as `--help` prints it."""
    from subtune.cli.main import build_parser

    return "\n".join(_command(parser) for parser in _parsers(build_parser()))


def errors() -> str:
    """Every message of every error a user can meet, by its class; `…` stands for what a message fills in."""
    found: dict[str, set[str]] = {}
    for _, tree in modules().values():
        known = _strings(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in error_classes():
                text = _template(node.args[0], known) if node.args else "…"
                if text.strip("…:.; "):
                    found.setdefault(node.func.id, set()).add(text)
    parts = []
    for name, meaning in error_classes().items():
        if name in found:
            listed = "\n".join(f"- {_code(text)}" for text in sorted(found[name], key=lambda t: t.strip("…: ").lower()))
            parts.append(f"## {name}\n\n{meaning}\n\n{listed}\n")
    return "\n".join(parts)


def source_map() -> str:
    """A line for every module: its docstring's first."""
    rooms: dict[str, list[tuple[str, str]]] = {}
    for name, (path, tree) in sorted(modules().items()):
        is_package = path.name == "__init__.py"
        room = name if is_package else name.rpartition(".")[0]
        text = ast.get_docstring(tree) or ""
        entry = ("" if is_package else name.rpartition(".")[2], " ".join(text.split("\n\n")[0].split()))
        if entry[1] or not is_package:
            rooms.setdefault(room, []).append(entry)
    parts = []
    for room, entries in rooms.items():
        about = next((text for module, text in entries if not module), "")
        lines = [f"- `{module}`: {text}" for module, text in entries if module]
        parts.append("\n".join(filter(None, (f"## {room}\n", f"{about}\n" if about else "", *lines))) + "\n")
    return "\n".join(parts)


def pipeline() -> str:
    """What `subtune inspect --pipeline` prints."""
    from subtune.cli.main import main

    with redirect_stdout(io.StringIO()) as printed:
        main(["inspect", "--pipeline"])
    return f"```text\n{printed.getvalue().rstrip()}\n```"


GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "errors": errors,
    "source_map": source_map,
    "pipeline": pipeline,
}


@cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Every module of subtune by its dotted name: its file, and what is in it."""
    found = {}
    for room, folder in ROOMS.items():
        for path in folder.rglob("*.py"):  # which does not follow the links in subtune/
            inner = path.relative_to(folder).with_suffix("").parts
            name = ".".join((room, *(part for part in inner if part != "__init__")))
            found[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    return found


@cache
def error_classes() -> dict[str, str]:
    """The classes that the command line reports as one line, with the first sentence of their docstrings."""
    classes = [node for _, tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found: dict[str, str] = {}
    bases = ["SubtuneError"]
    for base in bases:
        for node in classes:
            is_one = node.name == base or any(isinstance(b, ast.Name) and b.id == base for b in node.bases)
            if is_one and node.name not in found:
                found[node.name] = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                bases.append(node.name)
    return found


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                yield from _parsers(child)


def _command(parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=_WIDTH)
    return f"## {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


def _strings(tree: ast.Module) -> dict[str, str]:
    """A module's constants that are strings."""
    return {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def _template(node: ast.expr, known: dict[str, str]) -> str:
    """A message with `…` for everything that is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return re.sub("…+", "…", "".join(_template(part, known) for part in node.values))
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        return known.get(node.value.id, "…")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, known) + _template(node.right, known)
    return "…"


def _code(text: str) -> str:
    return f"`` {' '.join(text.split())} ``"
