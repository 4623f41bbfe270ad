"""`subtune inspect MODEL`: the partition, why its boundaries lie where they do, and where measurements decide."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subtune.cli import arguments
from subtune.errors import SubtuneError

if TYPE_CHECKING:
    from subtune.choose import Choice
    from subtune.compile import Prepared


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("inspect", parents=[common], help="show a model's subgraphs")
    arguments.add_model(parser)
    parser.add_argument("--dot", metavar="FILE", help="write the partition as a Graphviz file")
    parser.add_argument("--svg", metavar="FILE", help="write the partition as a picture")
    parser.add_argument("--target", default="auto", help="the processor whose measurements to show (default: this one)")
    parser.add_argument("--threads", type=arguments.positive, metavar="N", help="and its threads (default: all cores)")
    parser.add_argument("--db", metavar="FILE", help="tuning database (default: in the user's cache directory)")
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
    print((inspect.to_json if args.json else inspect.to_text)(prepared.graph, rows, _choices(args, prepared)))
    return 0


def _choices(args: argparse.Namespace, prepared: Prepared) -> tuple[Choice, ...]:
    """What the database, if there is one, says of the alternatives to the partition."""
    from subtune.compile import device_model
    from subtune.database.store import Database, default_path
    from subtune.regions import alternatives_to, recorded_choices

    others = alternatives_to(prepared.normalized, prepared.graph, prepared.subgraphs)
    device = device_model(args.target, args.threads, is_measured=False)
    path = Path(args.db) if args.db else default_path()
    if not args.db and not path.exists():
        return recorded_choices(others, prepared.subgraphs, device, None)
    with Database(path) as database:
        return recorded_choices(others, prepared.subgraphs, device, database)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as e:
        raise SubtuneError(f"cannot write {path}: {e.strerror or e}") from e
