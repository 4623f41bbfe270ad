"""`subtune completion SHELL`: a script that completes commands, options and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

_SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "MODEL", "ARTIFACT", "OUT")
_DIRECTORIES = ("DIR", "DIRECTORY")
"""Words of a metavar that say what an argument is."""


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("completion", parents=[common], help="print a script that completes commands")
    parser.add_argument("shell", choices=_SHELLS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import shtab

    for action in _actions(args.parser):
        words = _words(action)
        if words & set(_DIRECTORIES):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif words & set(_FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(args.parser, shell=args.shell))
    return 0


def _words(action: argparse.Action) -> set[str]:
    """`FILE.json` and `ARTIFACT|MODEL` are words with more behind them."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return {word.partition(".")[0] for part in metavar.split("|") for word in part.split("=")}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _actions(child)
        else:
            yield action
