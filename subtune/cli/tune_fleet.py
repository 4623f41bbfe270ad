"""`subtune tune-fleet FLEET.toml`: many models for many targets as one run."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from subtune.cli import arguments
from subtune.cli.progressbar import progress_bar

if TYPE_CHECKING:
    from subtune.fleet import FleetReport


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("tune-fleet", parents=[common], help="tune many models for many targets as one run")
    parser.add_argument("fleet", metavar="FLEET.toml", help="the models, the targets, the budget")
    arguments.add_cluster(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be tuned, and tune nothing")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.fleet import read_fleet, tune_fleet

    fleet = read_fleet(args.fleet)

    def tell(text: str) -> None:
        if not args.json:
            print(f"== {text}", flush=True)

    with progress_bar() as progress:
        report = tune_fleet(fleet, cluster=args.cluster, is_dry=args.dry_run, progress=progress, tell=tell)
    print(_as_json(report) if args.json else _as_text(report, args.dry_run))
    for row in (row for target in report.targets for row in target.rows if row.error):
        print(f"subtune: {row.model}: {row.error}", file=sys.stderr)
    return 130 if report.is_interrupted else 2 if report.failed else 0


def _as_text(report: FleetReport, is_dry: bool) -> str:
    lines = []
    for one in report.targets:
        lines.append(
            f"{one.target} ({one.device}): {one.workloads} distinct workloads, {one.shared} of them of several models, "
            f"{one.known} tuned before" + ("" if is_dry else f"; {one.tuned} have a record now, {one.seconds:.0f} s")
        )
        for row in one.rows:
            what = f"verified: {row.report.verified}" if row.report else row.error or "to be written"
            lines.append(f"  {row.model} -> {row.artifact}: {what}")
    return "\n".join(lines)


def _as_json(report: FleetReport) -> str:
    targets = [
        {
            "target": one.target,
            "device": one.device,
            "workloads": one.workloads,
            "shared": one.shared,
            "known": one.known,
            "tuned": one.tuned,
            "seconds": one.seconds,
            "models": [
                {
                    "model": row.model,
                    "artifact": row.artifact,
                    "error": row.error or None,
                    "report": json.loads(row.report.to_json()) if row.report else None,
                }
                for row in one.rows
            ],
        }
        for one in report.targets
    ]
    return json.dumps({"is_interrupted": report.is_interrupted, "targets": targets}, indent=2)
