"""`subtune zoo list|build`: the model zoo."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from subtune.cli import arguments
from subtune.core.errors import SubtuneError


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("zoo", help="list and build the zoo's models")
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))
    listing = actions.add_parser("list", parents=[common], help="name and describe the models")
    arguments.add_json(listing)
    listing.set_defaults(run=run_list)
    build = actions.add_parser("build", parents=[common], help="write a model as an ONNX file")
    build.add_argument("name", metavar="NAME")
    build.add_argument("-o", "--output", required=True, metavar="FILE")
    build.add_argument("--batch", type=arguments.positive, metavar="N")
    build.add_argument("--dtype", metavar="DTYPE", help="float32 or float16")
    build.add_argument(
        "--set",
        action="append",
        default=[],
        type=arguments.assignment,
        metavar="KEY=VALUE",
        help="another argument of the model's builder, such as layers=2; may be repeated",
    )
    arguments.add_json(build)
    build.set_defaults(run=run_build)


def run_list(args: argparse.Namespace) -> int:
    from subtune import models

    names = (*models.names(), *models.quantised_names())
    if args.json:
        print(json.dumps([{"name": name, "description": models.describe(name)} for name in names], indent=1))
        return 0
    width = max(map(len, names)) + 2
    for name in names:
        print(f"{name:<{width}}{models.describe(name)}")
    return 0


def run_build(args: argparse.Namespace) -> int:
    from subtune import models

    options: dict[str, Any] = {key: _value(text) for key, text in args.set}
    options |= {key: value for key, value in (("batch", args.batch), ("dtype", args.dtype)) if value is not None}
    model = models.build(args.name, **options)
    try:
        Path(args.output).write_bytes(model.SerializeToString())
    except OSError as e:
        raise SubtuneError(f"cannot write {args.output}: {e.strerror or e}") from e
    print(json.dumps({"name": args.name, "path": args.output}) if args.json else f"wrote {args.output}")
    return 0


def _value(text: str) -> int | float | bool | str:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
