"""`subtune`: parse, run one command, and turn every failure into one line and an exit code.

Exit codes: 0 done, 1 a bug of subtune, 2 something the user can mend, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

import subtune
from subtune.cli import bench, compare, compile, database, device, export, inspect, quantize, run, zoo
from subtune.cli.without_torch import leave_torch_out
from subtune.core.errors import SubtuneError

_COMMANDS = (compile, inspect, run, bench, compare, quantize, export, device, zoo, database)

_FAULTS_OF_PATHS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)
"""Of what the user named, or of where it lies; every other OSError that nobody caught is a bug."""


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
    except SubtuneError as e:
        if args.debug:
            raise
        print(f"subtune: error: {_one_line(e)}", file=sys.stderr)
        return 2
    except Exception as e:
        if args.debug:
            raise
        if isinstance(e, OSError) and e.errno in _FAULTS_OF_PATHS and e.filename:
            print(f"subtune: error: {os.fsdecode(e.filename)} cannot be used: {e.strerror}", file=sys.stderr)
            return 2
        text = f"{type(e).__name__}: {_one_line(e)}"
        print(f"subtune: internal error: {text}; this is a bug, rerun with --debug", file=sys.stderr)
        return 1


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
