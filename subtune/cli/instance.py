"""`--shape SYMBOL=N` of commands that take an artifact: in which of its shapes it is run."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence

from subtune.core.errors import InputError
from subtune.core.manifest import Manifest

_FORM = re.compile(r"(?P<name>[^=]+)=(?P<value>[0-9]{1,18})")


def add_instance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="SYMBOL=N",
        help="the value of a symbolic dimension in random arrays (default: the largest); may be repeated",
    )


def instance_of(given: Sequence[str], manifest: Manifest) -> dict[str, int]:
    """Values of all symbols: those `given` as text, of the others the largest. Raises InputError for what is none."""
    values = dict(manifest.domain.greatest)
    if given and not values:
        raise InputError(f"the model {manifest.name} has no symbolic dimensions: leave --shape out")
    for text in given:
        if (found := _FORM.fullmatch(text)) is None:
            raise InputError(f"--shape {text!r} is not of the form SYMBOL=N, such as {manifest.domain.names[0]}=1")
        if found["name"] not in values:
            raise InputError(f"--shape {text}: the model {manifest.name} has the symbols {', '.join(values)}")
        values[found["name"]] = int(found["value"])
    if complaint := manifest.domain.complaint(values):
        raise InputError(f"--shape: {complaint}")
    return values


def shown(values: Mapping[str, int]) -> str:
    """As on the command line: `seq=17 batch=4`."""
    return " ".join(f"{name}={value}" for name, value in values.items())
