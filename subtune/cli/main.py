"""`subtune`: parse, run one command, and turn every failure into one line and an exit code.

Exit codes: 0 done, 1 a bug of subtune, 2 something the user can mend, 3 slower than `bench --fail-below` allows, 130
interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

import subtune
from subtune.cli import (
    bench,
    compare,
    compile,
    completion,
    database,
    device,
    export,
    inspect,
    push,
    quantize,
    report,
    run,
    tune_fleet,
    zoo,
)
from subtune.cli.failures import explained
from subtune.cli.without_torch import leave_torch_out

_COMMANDS = (
    compile,
    tune_fleet,
    inspect,
    report,
    run,
    bench,
    compare,
    quantize,
    export,
    push,
    device,
    zoo,
    database,
    completion,
)


class _Parser(argparse.ArgumentParser):
    """argparse with subtune's one-line errors."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"subtune: error: {message} (see `{self.prog} --help`)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="subtune",
        description="Tune a model's fused subgraphs as the units that ship, and write one deployable artifact.",
    )
    parser.add_argument("--version", action="version", version=f"subtune {subtune.__version__}")
    parser.set_defaults(parser=parser)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show tracebacks and log what happens")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for command in _COMMANDS:
        command.add_parser(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `subtune` with `argv` (default: the process's) and return its exit code."""
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal's encoding lacks is printed in escapes
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    args = build_parser().parse_args(argv)
    leave_torch_out()
    if args.debug:
        logging.basicConfig(level=logging.DEBUG, format="%(relativeCreated)6d ms %(name)s: %(message)s")
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has gone (`subtune ... | head`); a closed stdout must not complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("subtune: interrupted", file=sys.stderr)
        return 130
    except Exception as e:
        if args.debug:
            raise
        text, code = explained(e)
        print(f"subtune: {text}", file=sys.stderr)
        return code
