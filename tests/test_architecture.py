"""ARCHITECTURE.md has one line per file, and no line for a file that is gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("subtune", "frontends", "passes", "models")


def test_every_file_has_its_line() -> None:
    listed: set[str] = set()
    room = ""
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        if heading := re.match(r"### (\w+)/$", line):
            room = heading[1]
        elif entry := re.match(r"- `([\w/]+\.py)`: ", line):
            listed.add(f"{room}/{entry[1]}")
    present = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if not any((ROOT / room / part).is_symlink() for part in path.relative_to(ROOT / room).parts[:1])
    }
    assert listed == present
