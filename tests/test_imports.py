"""The direction of dependencies: cli -> compile -> the middle rooms -> the data types; no way back, no circles.

The middle rooms do not import one another: `compile` level is the only place that knows all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1] / "subtune"

# Level and room of every module; a package stands for all its modules. What is not named is a data type: it may
# import other data types only.
ROOMS = {
    "cli": (3, "cli"),
    **dict.fromkeys(
        (
            "compile",
            "compare",
            "bench",
            "tuner",
            "tune",
            "predict",
            "inspect",
            "regions",
            "onnx_backend",
            "api",
            "fast_dlight",
        ),
        (2, "compile"),
    ),
    **dict.fromkeys(("artifact", "artifact_cuda", "artifact_writer", "verify"), (1, "artifact")),
    **{room: (1, room) for room in ("frontends", "passes", "policy", "templates", "measure")},
}
DATA = (0, "data")

# The writer lifts the weights out of the module and plans its memory, its own last steps before lowering; nothing else
# may need the passes.
# The database asks the templates for their version, part of every key.
ALLOWED = {
    ("subtune.artifact.writer", "subtune.backends.cpu.lowering.join_kernels"),
    ("subtune.artifact.writer", "subtune.assembly.lift_constants"),
    ("subtune.artifact.writer", "subtune.assembly.static_memory"),
    ("subtune.artifact.writer", "subtune.backends.cpu.lowering.straight_line"),
    ("subtune.database.store", "subtune.templates"),
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


def imports(tree: ast.AST, modules: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """(module, line) of every import of subtune's, also inside functions, but for those for the type checker only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] == "subtune")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "subtune":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if full in modules else node.module), node.lineno
        yield from imports(node, modules)


def room(module: str) -> tuple[int, str]:
    parts = module.split(".")
    return ROOMS.get(parts[1], DATA) if len(parts) > 1 else DATA


MODULES = files()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_downwards(module):
    level, own = room(module)
    wrong = [
        f"line {line}: {module} ({own}, level {level}) imports {other} ({other_room}, level {other_level})"
        for other, line in imports(ast.parse(MODULES[module].read_text()), MODULES)
        for other_level, other_room in [room(other)]
        if (other_level > level or (other_level == level and other_room != own)) and (module, other) not in ALLOWED
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_no_circles():
    graph = nx.DiGraph()
    for module, path in MODULES.items():
        for other, _ in imports(ast.parse(path.read_text()), MODULES):
            # A package's __init__ names its own modules for others, and `subtune` itself only its version.
            if other != "subtune" and not module.startswith(f"{other}.") and other != module:
                graph.add_edge(module, other)
    assert list(nx.simple_cycles(graph)) == []


def test_only_the_command_line_prints():
    printing = [
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        if room(module)[1] != "cli" and module != "subtune.bench.worker"  # which answers its parent
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def test_the_rooms_are_found():
    assert {"subtune.core.errors", "subtune.cli.main", "subtune.assembly.lift_constants"} <= set(MODULES)
    assert all(name in MODULES for name in ("subtune.artifact", "subtune.frontends", "subtune.models"))
