"""`subtune export ARTIFACT --standalone DIR | --wheel DIR`: what runs without subtune, TVM and a compiler."""

from __future__ import annotations

import argparse
from typing import Any

from subtune.cli import arguments
from subtune.core.errors import SubtuneError


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "export", parents=[common], help="pack an artifact with its runtime, for machines without subtune"
    )
    parser.add_argument("artifact", metavar="ARTIFACT")
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument(
        "--standalone", metavar="DIR", help="a directory for C, C++ and Python, with a program that runs the model"
    )
    form.add_argument("--wheel", metavar="DIR", help="a Python package that needs numpy alone, in this directory")
    parser.add_argument("--name", metavar="NAME", help="of the Python package (default: the artifact's)")
    parser.add_argument("--package-version", metavar="N.N", help="of the Python package (default: 1.0)")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.deploy import export_standalone, export_wheel

    if args.standalone:
        if args.name or args.package_version:
            raise SubtuneError("--name and --package-version are of a Python package: give --wheel, or leave them out")
        report = export_standalone(args.artifact, args.standalone)
    else:
        report = export_wheel(args.artifact, args.wheel, args.name, args.package_version or "1.0")
    print(report.to_json() if args.json else report)
    return 0
