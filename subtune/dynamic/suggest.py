"""Names in messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def close(name: str, known: Iterable[str]) -> str:
    """What a misspelt name may have meant, as a bracket of a sentence; "" where nothing is like it."""
    found = difflib.get_close_matches(name, list(known), n=3)
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def listed(names: Iterable[str]) -> str:
    """
    >>> listed(["batch", "seq"]), listed([])
    ("'batch', 'seq'", 'none')
    """
    return ", ".join(map(repr, names)) or "none"
