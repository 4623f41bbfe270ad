"""TVMScript functions whose text is looked up and parsed once, and not for every kernel that is made of them.

A kernel in TVMScript is parsed again for every tile: the text is the same, what its names mean is not. For each, TVM
looks for the module among all that are loaded, splits its file into tokens, and converts Python's syntax tree to its
own, which takes half of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from subtune.backends.cuda.building.fast_import import cheap_stack

_texts: dict[CodeType, dict[str, Any]] = {}
_trees: dict[str, Any] = {}


@contextmanager
def parsed_once() -> Iterator[None]:
    """Inside, TVMScript functions of the same code share their text and its syntax tree."""
    from tvm.script.parser.core.diagnostics import Source

    read, parse = Source.__init__, Source.as_ast

    def known_text(self: Any, program: Any) -> None:
        code = getattr(program, "__code__", None)
        if code in _texts:
            vars(self).update(_texts[code])
            return
        read(self, program)
        if code is not None:
            _texts[code] = dict(vars(self))

    def known_tree(self: Any) -> Any:
        if self.source not in _trees:
            _trees[self.source] = parse(self)
        return _trees[self.source]

    with cheap_stack():
        Source.__init__, Source.as_ast = known_text, known_tree
        try:
            yield
        finally:
            Source.__init__, Source.as_ast = read, parse
