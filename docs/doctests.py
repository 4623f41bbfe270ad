"""An extension of Griffe's: the examples in docstrings become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1(?! *$).+)*", re.MULTILINE)
"""From a prompt to the next empty line."""


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(found: re.Match[str]) -> str:
    return f"{found[1]}```pycon\n{found[0]}\n{found[1]}```"
