"""`subtune compare MODEL`: tuning every op alone against tuning subgraphs."""

from __future__ import annotations

import argparse
from typing import Any

from subtune.cli import arguments
from subtune.cli.progressbar import progress_bar


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("compare", parents=[common], help="compare op-level with subgraph-level tuning")
    arguments.add_model(parser)
    arguments.add_parameters(parser)
    arguments.add_tuning(parser)
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.tuning.compare import compare_model

    with progress_bar() as progress:
        report = compare_model(
            args.model,
            shapes=arguments.shapes_of(args),
            progress=progress,
            **arguments.parameters_of(args),
            **arguments.tuning_of(args),
        )
    print(report.to_json() if args.json else report)
    return 0
