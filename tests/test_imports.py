"""Imports point down one complete table of rooms, also those by name in a string; and there are no circles."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1] / "subtune"

# From the bottom up. A room may import itself and the rooms of the lines before its own; those of one line do not know
# one another. What stands in no line fails the tests; where several names fit a module, the longest counts.
ROOMS = (
    ("core",),
    ("runtime",),
    ("tir",),
    ("quantization",),
    (
        "patterns",
        "models",
        "backends.calibration",
        "backends.many_shapes",
        "backends.planned",
        "backends.elsewhere",
        "backends.fingerprints",
    ),
    ("backends.base",),
    ("measure", "artifact"),  # without what they do by asking a backend
    ("passes", "frontends"),
    ("backends.host", "backends.algorithms"),
    ("backends.cpu", "backends.cuda"),
    ("backends",),
    ("pipeline",),
    ("assembly", "database", "deploy"),
    ("tuning",),
    ("verification",),
    ("dynamic",),
    ("report",),
    ("options",),
    ("dynamic",),
    ("cluster",),
    ("workplace",),
    ("driver", "quantizer"),
    ("tuning.compare",),  # which compiles whole models
    ("deploy.push",),  # which imports the model again, to compare with it
    ("bench", "integrations"),
    ("compiling", "fleet"),
    ("cli",),
    ("__main__",),
)
PUBLIC = "subtune"
"""The package itself: below, as its version, which it knows by itself; above, as the names it offers."""

# (importing module, imported one) -> why it may.
EXCEPTIONS = {
    ("subtune.measure.local", "subtune.backends"): "a bare hardware model may be given for a device",
    ("subtune.measure.session", "subtune.backends"): "workers are told by name who schedules",
    ("subtune.artifact.model", "subtune.backends"): "its program is loaded by the backend of its kind",
}


def files() -> dict[str, Path]:
    """Every module by its name; `rglob` does not follow the links, so the rooms behind them are walked by hand."""
    found = {}
    for folder in (ROOT, *(path for path in ROOT.iterdir() if path.is_symlink())):
        for path in folder.resolve().rglob("*.py"):
            name = ".".join(("subtune", *((folder.name,) if folder != ROOT else ()), *_parts(path, folder.resolve())))
            found[name] = path
    return found


def _parts(path: Path, folder: Path) -> tuple[str, ...]:
    parts = path.relative_to(folder).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = files()
LEVELS = {f"subtune.{name}": (level, name) for level, names in enumerate(ROOMS) for name in names}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def room(module: str) -> tuple[int, str] | None:
    """(level, room) by the longest name in the table that the module is, or lies in."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
    return next((LEVELS[name] for name in names if name in LEVELS), None)


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """All of a module, walked once for all tests."""
    return tuple(ast.walk(tree(module)))


def imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    """(module, line) of every import of subtune's, also inside functions, but for those for the type checker only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno) for alias in child.names if alias.name.split(".")[0] == "subtune")
        elif isinstance(child, ast.ImportFrom) and child.module and child.module.split(".")[0] == "subtune":
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield (full if full in MODULES else child.module), child.lineno
        yield from imports(child)


def names(module: str) -> Iterator[tuple[str, int]]:
    """(module, line) of every string that is the name of a module, `module:function`, or how an f-string of one begins.

    `"subtune.turned"`, an attribute of a loop, is none: there is no such module.
    """
    for node in nodes(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = re.fullmatch(r"(subtune(?:\.\w+)+)[.:]?\w*", node.value)
            if text and text[1] in MODULES:
                yield text[1], node.lineno


@cache
def imported(module: str) -> tuple[tuple[str, int], ...]:
    return tuple(imports(tree(module)))


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """A million nodes, among which each collection of garbage would look for some."""
    yield
    for kept in (tree, nodes, imported):
        kept.cache_clear()


def edges(module: str) -> list[tuple[str, int]]:
    return [*imported(module), *names(module)]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_downwards(module):
    if module == PUBLIC:
        return
    here = room(module)
    assert here, f"{module} has no line in ROOMS"
    level, own = here
    wrong = []
    for other, line in edges(module):
        there = room(other)
        if other == PUBLIC or there == here or (module, other) in EXCEPTIONS:
            continue
        if there is None or there[0] >= level:
            wrong.append(f"line {line}: {module} (level {level}, {own}) imports {other} {there}")
    assert not wrong, "\n".join(wrong)


def test_every_line_of_the_table_is_a_room():
    assert sorted(LEVELS.keys() - MODULES.keys() - {"subtune.pipeline"}) == []


def test_every_exception_is_one():
    unused = [
        f"{module} does not import {other} any more: delete the line"
        for module, other in EXCEPTIONS
        if module not in MODULES or other not in {name for name, _ in edges(module)}
    ]
    assert not unused, "\n".join(unused)


def test_the_package_is_imported_for_its_version_and_place_only():
    taken = {
        (module, node.attr)
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "subtune"
    } | {
        (module, alias.name)
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.ImportFrom) and node.module == "subtune"
        for alias in node.names
        if f"subtune.{alias.name}" not in MODULES
    }
    assert {attribute for _, attribute in taken} <= {"__version__", "__file__"}, taken


def test_what_is_imported_by_name_exists():
    missing = [
        f"{module}:{node.lineno} imports {node.args[0].value!r}"
        for module in MODULES
        for node in nodes(module)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] == "import_module"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and str(node.args[0].value).startswith("subtune.")
        and node.args[0].value not in MODULES
    ]
    assert missing == []


def test_there_are_no_circles():
    graph = nx.DiGraph()
    for module in MODULES:
        for other, _ in imported(module):
            # A package's __init__ names its own modules for others, and `subtune` itself only its version.
            if not (other in (PUBLIC, module) or module.startswith(f"{other}.")):
                graph.add_edge(module, other)
    assert list(nx.simple_cycles(graph)) == []


def test_data_types_need_no_compiler():
    """`core` is imported by processes that only load or report: TVM takes a second of theirs."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint('tvm' in sys.modules)"
    core = [module for module in MODULES if module.startswith("subtune.core")]
    done = subprocess.run(
        [sys.executable, "-c", code, *core], cwd=ROOT.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_only_the_command_line_prints():
    printing = [
        f"{module}:{node.lineno}"
        for module in MODULES
        if not module.startswith("subtune.cli") and module != "subtune.bench.worker"  # which answers its parent
        for node in nodes(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def test_the_rooms_behind_links_are_found():
    assert {"subtune.frontends", "subtune.passes.opkind", "subtune.models", "subtune.core.errors"} <= set(MODULES)
