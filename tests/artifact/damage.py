"""In a process of its own: edit an artifact's manifest by a seed, load it, run it, and say what came of it.

`python -m tests.artifact.damage ARTIFACT RESULT.npz FIRST LAST [plain]` prints one JSON object for each seed. The
checksum is made right again: the edits are what a forger could write, one field at a time.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from subtune.artifact import load, manifest
from subtune.core.errors import SubtuneError

_DTYPES = ("float16", "float64", "int8", "bool", "bfloat16", "float8_e4m3fn", "object", "U5", "nonsense")
_NUMBERS = (0, 1, -1, -64, 63, 1 << 20, 1 << 40, (1 << 62) - 64, 1 << 63, 1 << 80)
_OTHERS = (None, True, 1.5, "7", "", [], {}, [[]], "\udcff", float("nan"))


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a JSON value, itself left out."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in items for place in ((*path, key), *places(value, (*path, key)))]


def edit(data: dict[str, Any], seed: int, is_plain: bool) -> str:
    """Change one thing in `data`; what it was. `is_plain`: neither order nor another number that is possible."""
    rng = random.Random(seed)
    path = rng.choice(places(data))
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    key, value = path[-1], parent[path[-1]]
    kinds = ["drop", "retype"]
    if type(value) is int:
        kinds += ["number"] * 3
    if key == "dtype":
        kinds += ["dtype"] * 3
    if isinstance(value, list) and value and not is_plain:
        kinds += ["repeat", "empty", "swap", "swap"]
    kind = rng.choice(kinds)
    if kind == "drop":
        del parent[key]
    elif kind == "retype":
        parent[key] = rng.choice(_OTHERS)
    elif kind == "number":
        parent[key] = rng.choice([number for number in _NUMBERS if not is_plain or number < 0 or number > 1 << 50])
    elif kind == "dtype":
        parent[key] = rng.choice([dtype for dtype in _DTYPES if dtype != value])
    elif kind == "repeat":
        value.append(copy.deepcopy(rng.choice(value)))
    elif kind == "empty":
        parent[key] = []
    else:
        i, j = rng.randrange(len(value)), rng.randrange(len(value))
        value[i], value[j] = value[j], value[i]
    return f"{kind} {'.'.join(map(str, path))}"


def outcome(folder: Path, expected: dict[str, np.ndarray]) -> str:
    """`same`, or why it was refused; the results are compared in their order, under whatever names and shapes."""
    try:
        artifact = load(folder)
        x = expected["x"]
        given = {spec.name: x.reshape(spec.shape).astype(spec.dtype) for spec in artifact.inputs}
        results = list(artifact.run(given).values())
    except SubtuneError as e:
        return f"refused: {e}"
    wanted = [array for name, array in expected.items() if name != "x"]
    is_same = len(results) == len(wanted) and all(
        np.array_equal(a.reshape(-1), b.reshape(-1)) for a, b in zip(results, wanted, strict=True)
    )
    return "same" if is_same else "WRONG"


def main(folder: Path, results: Path, first: int, last: int, is_plain: bool) -> None:
    expected = dict(np.load(results))
    file = folder / "manifest.json"
    original = json.loads(file.read_text())
    for name in ("format", "checksum"):
        del original[name]
    for seed in range(first, last):
        data = copy.deepcopy(original)
        what = edit(data, seed, is_plain)
        file.write_text(manifest.to_text(data))
        print(json.dumps({"seed": seed, "edit": what}), flush=True)
        print(json.dumps({"seed": seed, "outcome": outcome(folder, expected)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:] == ["plain"])
