"""`subtune push ARTIFACT --remote HOST:PORT`: onto a device behind TVM's RPC, and a run of it there."""

from __future__ import annotations

import argparse
from typing import Any

from subtune.cli import arguments, instance


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "push", parents=[common], help="put an artifact onto a remote device, and run it there"
    )
    parser.add_argument("artifact", metavar="ARTIFACT")
    arguments.add_remote(parser, "the device's TVM RPC server, or a tracker that lends one of that key", required=True)
    parser.add_argument(
        "--to",
        default="",
        metavar="DIR",
        help="the folder there that gets the artifact, in the home of the server's user (default: subtune)",
    )
    instance.add_instance(parser)
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.artifact import manifest
    from subtune.deploy.push import push

    values = instance.instance_of(args.shape, manifest.read(args.artifact)) if args.shape else None
    report = push(args.artifact, args.remote, args.to, args.insecure, values)
    print(report.to_json() if args.json else report)
    return 0
