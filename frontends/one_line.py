"""What onnx, TVM and numpy say of a model, as part of a sentence of ours."""

from __future__ import annotations

import re

_MOST = 400
"""Characters."""

# TVM prints whole objects: the operator with its signature, every integer with its type.
_SHORTER = (
    (re.compile(r"ir\.Op\(.*?name=\"([\w.]+)\".*?support_level=\d+\)"), r"\1"),
    (re.compile(r"\bT\.u?int\d+\((-?\d+)\)"), r"\1"),
    (re.compile(r"\bR\.shape\(([^()]*)\)"), r"\1"),
    (re.compile(r"\s+"), " "),
)


def one_line(error: BaseException) -> str:
    """The text of an error on one line, without its tail of context and its final stop."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(("==>", "Traceback", "File ")))
    for pattern, shorter in _SHORTER:
        text = pattern.sub(shorter, text)
    text = text or type(error).__name__
    return (text if len(text) <= _MOST else text[:_MOST] + " ...").rstrip(" .")
