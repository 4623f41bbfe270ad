"""`subtune inspect MODEL|ARTIFACT`: the partition, why it is so, and where measurements decide; or an artifact."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subtune.cli import arguments
from subtune.cli.files import write_text
from subtune.core.errors import SubtuneError
from subtune.core.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from subtune.options import Options
    from subtune.pipeline import Prepared
    from subtune.tuning.choose import Choice


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "inspect", parents=[common], help="show a model's subgraphs, or an artifact's kernels and memory"
    )
    arguments.add_model(parser, is_optional=True)
    arguments.add_dynamic(parser)
    arguments.add_parameters(parser)
    parser.add_argument("--check", action="store_true", help="compare all files of an artifact with their SHA-256")
    parser.add_argument("--pipeline", action="store_true", help="show the phases and passes of a compile instead")
    parser.add_argument("--dot", metavar="FILE", help="write the partition as a Graphviz file")
    parser.add_argument("--svg", metavar="FILE", help="write the partition as a picture")
    parser.add_argument("--target", default="auto", help="the processor whose measurements to show (default: this one)")
    parser.add_argument("--threads", type=arguments.positive, metavar="N", help="and its threads (default: all cores)")
    arguments.add_database(parser)
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.pipeline:
        from subtune import pipeline

        lines = pipeline.describe()
        print(json.dumps({"pipeline": list(lines)}, indent=1) if args.json else "\n".join(lines))
        return 0
    if args.model is None:
        raise SubtuneError("name a model or an artifact, or ask for --pipeline")
    if (Path(args.model) / MANIFEST_NAME).is_file():
        return _artifact(args)
    if args.check:
        raise SubtuneError(f"--check is for artifacts, and {args.model} is none")
    from subtune.options import Options
    from subtune.passes.extract import call_names
    from subtune.pipeline import prepare
    from subtune.report import inspect

    shapes, dynamic = arguments.shapes_of(args), arguments.dynamic_of(args)
    options = Options(shapes=shapes, dynamic=dynamic, **arguments.parameters_of(args))
    prepared = prepare(args.model, _shapes(args.model, options), parameters=options.parameters)
    rows = inspect.rows(prepared.graph, prepared.subgraphs, call_names(prepared.mod))
    if args.dot:
        write_text(args.dot, inspect.to_dot(prepared.graph, rows))
    if args.svg:
        write_text(args.svg, inspect.to_svg(prepared.graph, rows))
    show = inspect.to_json if args.json else inspect.to_text
    print(show(prepared.graph, rows, _choices(args, prepared), prepared.in_floats))
    return 0


def _shapes(model: str, options: Options) -> Mapping[str, Sequence[int] | int] | None:
    """Of what is shown: of a model whose shapes vary, the instance with the largest value of every symbol."""
    if not options.dynamic:
        return options.shapes
    from subtune import frontends
    from subtune.dynamic.declare import declared

    domain, inputs = declared(model, options)
    return frontends.instance(inputs, domain.greatest, options.shapes)


def _artifact(args: argparse.Namespace) -> int:
    from subtune.artifact import manifest as manifests
    from subtune.artifact.schema import encode

    if args.dot or args.svg:
        raise SubtuneError(f"{args.model} is an artifact: --dot and --svg draw the partition of a model")
    manifest = manifests.read(Path(args.model))
    if args.check:
        manifests.check_hashes(Path(args.model), manifest)
    if args.json:
        data = encode(manifest)
        data["memory"]["weights_nbytes"] = manifest.weights_nbytes
        data["subgraphs"] = [{**encode(kernel), "gain": round(kernel.gain, 4)} for kernel in manifest.subgraphs]
        print(json.dumps(data, indent=1))
        return 0
    inputs, outputs = (", ".join(map(str, specs)) for specs in (manifest.inputs, manifest.outputs))
    print(f"{manifest.name}: ({inputs}) -> ({outputs})")
    if manifest.domain.symbols:
        print(f"compiled for {manifest.domain}: {manifest.domain.size} shapes")
    print(f"for {manifest.device}, {manifest.threads} threads; {manifest.memory_summary()}")
    if args.check:
        names = ", ".join(f"{entry.name} ({entry.nbytes} bytes)" for entry in manifest.files)
        print(f"checked: {names}: all as they were written")
    width = max([len(kernel.name) for kernel in manifest.subgraphs] + [6])
    print(f"{'kernel':<{width}}  default us   tuned us    gain  schedule")
    for kernel in manifest.subgraphs:
        figures = f"{kernel.default_s * 1e6:10.1f} {kernel.tuned_s * 1e6:10.1f} {kernel.gain:6.1f}x"
        if not kernel.tuned_s:
            figures = f"{'-':>10} {'-':>10} {'-':>7}"
        print(f"{kernel.name:<{width}}  {figures}  {kernel.candidate}")
    return 0


def _choices(args: argparse.Namespace, prepared: Prepared) -> tuple[Choice, ...]:
    """What the database, if there is one, says of the alternatives to the partition."""
    from subtune.backends import device_of
    from subtune.database import Database, default_path
    from subtune.tuning.alternatives import recorded_choices

    others = prepared.alternatives()
    device = device_of(args.target, args.threads, is_measured=False).for_working_set(prepared.working_set_bytes)
    if args.db is None and not default_path().exists():
        return recorded_choices(others, prepared.subgraphs, device, None)
    with Database(args.db) as database:
        return recorded_choices(others, prepared.subgraphs, device, database)
