"""`subtune compare MODEL`: tuning every op alone against tuning subgraphs."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Any

from subtune.cli import arguments
from subtune.cli.files import check_writable, write_text
from subtune.cli.progressbar import progress_bar
from subtune.core.errors import SubtuneError


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("compare", parents=[common], help="compare op-level with subgraph-level tuning")
    arguments.add_model(parser)
    arguments.add_parameters(parser)
    arguments.add_tuning(parser)
    parser.add_argument("--html", metavar="FILE", help="also write a page with plots (needs the extra `plots`)")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.tuning.compare import compare_model

    if args.html is not None:  # before minutes of tuning, not after
        check_writable(args.html)
        if find_spec("matplotlib") is None:
            raise SubtuneError("--html draws with matplotlib, which is not installed: pip install 'subtune[plots]'")
    with progress_bar() as progress:
        report = compare_model(
            args.model,
            shapes=arguments.shapes_of(args),
            progress=progress,
            **arguments.parameters_of(args),
            **arguments.tuning_of(args),
        )
    print(report.to_json() if args.json else report)
    if args.html is not None:
        from subtune.report.comparison_page import page

        write_text(args.html, page(report))
    return 0
