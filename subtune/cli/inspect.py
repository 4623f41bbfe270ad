"""`subtune inspect MODEL`: the partition, and why its boundaries lie where they do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from subtune.cli import arguments
from subtune.errors import SubtuneError


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("inspect", parents=[common], help="show a model's subgraphs")
    arguments.add_model(parser)
    parser.add_argument("--dot", metavar="FILE", help="write the partition as a Graphviz file")
    parser.add_argument("--svg", metavar="FILE", help="write the partition as a picture")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune import inspect
    from subtune.compile import prepare
    from subtune.passes.extract import call_names

    prepared = prepare(args.model, arguments.shapes_of(args))
    rows = inspect.rows(prepared.graph, prepared.subgraphs, call_names(prepared.mod))
    if args.dot:
        _write(args.dot, inspect.to_dot(prepared.graph, rows))
    if args.svg:
        _write(args.svg, inspect.to_svg(prepared.graph, rows))
    print((inspect.to_json if args.json else inspect.to_text)(prepared.graph, rows))
    return 0


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as e:
        raise SubtuneError(f"cannot write {path}: {e.strerror or e}") from e
