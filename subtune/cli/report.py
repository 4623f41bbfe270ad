"""`subtune report ARTIFACT`: what a compile gained and why, as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from subtune.cli import arguments
from subtune.cli.files import check_writable, write_text

_SUFFIX = ".subtune"


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "report", parents=[common], help="write an artifact's gains, partition, roofline and memory as an HTML page"
    )
    parser.add_argument("artifact", metavar="ARTIFACT")
    parser.add_argument("-o", "--output", metavar="FILE.html", help="the page (default: ARTIFACT.html, here)")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune.artifact import manifest as manifests
    from subtune.artifact.account import read_account
    from subtune.report.page.document import check_extra, page

    folder = Path(args.artifact)
    manifest = manifests.read(folder)
    account = read_account(folder, manifest)
    if args.json:
        print(_json(account))
        return 0
    check_extra()
    output = args.output or f"{folder.resolve().name.removesuffix(_SUFFIX)}.html"
    check_writable(output)
    text = page(manifest, account)
    write_text(output, text)
    print(f"wrote {output}: {len(text.encode()) / 1e6:.1f} MB; it needs no network")
    return 0


def _json(account: Any) -> str:
    """What the page is made of; `null` where the artifact holds none."""
    import json

    from subtune.artifact.schema import encode

    return json.dumps(None if account is None else encode(account), indent=1)
