"""`subtune bench --fail-below X`: figures as an exit code, for whoever runs it after every change."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subtune.bench.artifact_race import BenchReport

TOO_SLOW = 3
"""The exit code."""


def add_fail_below(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fail-below",
        type=ratio,
        metavar="X",
        help="exit with 3 where any of the others takes less than X times as long as subtune, or cannot be timed",
    )


def ratio(text: str) -> float:
    """A number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return value


def complaints(report: BenchReport, against: Sequence[str], least: float) -> list[str]:
    """Why the artifact is not `least` times as fast as each of the frameworks `against`: a sentence for each."""
    found = []
    reasons = dict(report.failures)
    for framework in against:
        row = report.row(framework)
        if row is None:
            found.append(f"{framework} was not timed: {reasons.get(framework, 'it gave no figures')}")
        elif not row.agrees:
            found.append(f"{framework} gives other outputs than subtune")
        elif row.ratio < least:
            found.append(f"{framework} takes {row.ratio:.2f} times as long as subtune, which is below {least:g}")
    if report.row("subtune") is None:
        found.append(f"subtune was not timed: {reasons.get('subtune', 'it gave no figures')}")
    return found


def exit_code(report: BenchReport, against: Sequence[str], least: float) -> int:
    """0, or TOO_SLOW with every complaint on stderr."""
    found = complaints(report, against, least)
    for complaint in found:
        print(f"subtune: below --fail-below: {complaint}", file=sys.stderr)
    return TOO_SLOW if found else 0
