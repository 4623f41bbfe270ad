"""`subtune db list|show|export|import|gc`: the tuning database."""

from __future__ import annotations

import argparse
import json
from typing import Any

from subtune.cli import arguments


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("db", help="look at, exchange and tidy the tuning database")
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))

    def action(name: str, text: str) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = actions.add_parser(name, parents=[common], help=text)
        sub.add_argument("--db", metavar="FILE", help="tuning database (default: in the user's cache directory)")
        arguments.add_json(sub)
        sub.set_defaults(run=run, action=name)
        return sub

    action("list", "one line per workload: the best candidate and its latency")
    action("show", "every candidate of a workload").add_argument("key", metavar="WORKLOAD")
    action("export", "write the winners as a MetaSchedule database").add_argument("folder", metavar="DIRECTORY")
    action("import", "take over the records of a MetaSchedule database").add_argument("folder", metavar="DIRECTORY")
    action("gc", "drop what other versions and losing candidates left behind")
    parser.set_defaults(action=None)


def run(args: argparse.Namespace) -> int:
    from subtune.database import Database

    with Database.open(args.db) as database:
        if args.action == "list":
            result = database.list()
        elif args.action == "show":
            result = database.show(args.key)
        elif args.action == "export":
            result = database.export(args.folder)
        elif args.action == "import":
            result = database.import_(args.folder)
        else:
            result = database.gc()
    rows = list(result) if isinstance(result, list | tuple) else [result]
    if args.json:
        print(json.dumps(rows, default=str, indent=1))
    else:
        print(*rows, sep="\n")
    return 0
