"""`subtune inspect MODEL|ARTIFACT`: the partition, and why it is so; or an artifact's kernels and memory."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from subtune.cli import arguments
from subtune.errors import SubtuneError


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "inspect", parents=[common], help="show a model's subgraphs, or an artifact's kernels and memory"
    )
    arguments.add_model(parser)
    parser.add_argument("--dot", metavar="FILE", help="write the partition as a Graphviz file")
    parser.add_argument("--svg", metavar="FILE", help="write the partition as a picture")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if (Path(args.model) / "manifest.json").is_file():
        return _artifact(args)
    from subtune import inspect
    from subtune.compile import prepare
    from subtune.passes.extract import call_names

    prepared = prepare(args.model, arguments.shapes_of(args))
    rows = inspect.rows(prepared.graph, prepared.subgraphs, call_names(prepared.mod))
    if args.dot:
        _write(args.dot, inspect.to_dot(prepared.graph, rows))
    if args.svg:
        _write(args.svg, inspect.to_svg(prepared.graph, rows))
    print((inspect.to_json if args.json else inspect.to_text)(prepared.graph, rows))
    return 0


def _artifact(args: argparse.Namespace) -> int:
    from subtune import manifest as manifests

    if args.dot or args.svg:
        raise SubtuneError(f"{args.model} is an artifact: --dot and --svg draw the partition of a model")
    manifest = manifests.read(Path(args.model))
    if args.json:
        data = json.loads(manifest.to_json())
        data["memory"]["weights_nbytes"] = manifest.weights_nbytes
        print(json.dumps(data, indent=1))
        return 0
    inputs, outputs = (", ".join(map(str, specs)) for specs in (manifest.inputs, manifest.outputs))
    print(f"{manifest.name}: ({inputs}) -> ({outputs})")
    print(f"for {manifest.device}, {manifest.threads} threads; {manifest.memory_summary()}")
    width = max([len(kernel.name) for kernel in manifest.subgraphs] + [6])
    print(f"{'kernel':<{width}}  default us   tuned us    gain  schedule")
    for kernel in manifest.subgraphs:
        figures = f"{kernel.default_s * 1e6:10.1f} {kernel.tuned_s * 1e6:10.1f} {kernel.gain:6.1f}x"
        if not kernel.tuned_s:
            figures = f"{'-':>10} {'-':>10} {'-':>7}"
        print(f"{kernel.name:<{width}}  {figures}  {kernel.candidate}")
    return 0


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as e:
        raise SubtuneError(f"cannot write {path}: {e.strerror or e}") from e
