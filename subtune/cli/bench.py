"""`subtune bench ARTIFACT|MODEL`: latency beside ONNX Runtime and TVM's default pipeline."""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from subtune.cli import arguments
from subtune.errors import ArtifactError


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("bench", parents=[common], help="time an artifact or a model beside other frameworks")
    parser.add_argument("subject", metavar="ARTIFACT|MODEL", help="a model is compiled first, into a temporary place")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=D0,D1,…", help="for a MODEL, as compile's"
    )
    parser.add_argument(
        "--against", default=None, metavar="LIST", help="onnxruntime,default, one of them, or none (default: both)"
    )
    parser.add_argument("--threads", type=arguments.positive, metavar="N")
    parser.add_argument("--rounds", type=arguments.positive, default=7, metavar="N", help="interleaved rounds")
    arguments.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from subtune import manifest as manifests
    from subtune.bench import AGAINST, bench

    is_asked = args.against is not None
    against = AGAINST if not is_asked else tuple(n for n in args.against.split(",") if n and n != "none")
    with tempfile.TemporaryDirectory(prefix="subtune-bench-") as scratch:
        artifact = Path(args.subject)
        if not artifact.is_dir() and artifact.suffix != ".subtune":
            artifact = _compile(args, Path(scratch))
        manifest = manifests.read(artifact)
        with _onnx_file(manifest.source, Path(scratch), needed=is_asked and bool(against)) as (model, limits):
            report = bench(
                artifact,
                model=model,
                against=against if model else (),
                threads=args.threads,
                rounds=args.rounds,
                limits=limits,
            )
    print(report.to_json() if args.json else report)
    if not model and not is_asked and not args.json:
        print("the model that it was compiled from is not known: nothing to compare with")
    return 0


def _compile(args: argparse.Namespace, scratch: Path) -> Path:
    from subtune.cli.compile import default_output
    from subtune.cli.progressbar import progress_bar
    from subtune.compile import compile_model

    output = scratch / default_output(args.subject)
    with progress_bar() as progress:
        compile_model(args.subject, output, shapes=arguments.shapes_of(args), threads=args.threads, progress=progress)
    return output


@contextmanager
def _onnx_file(source: Any, scratch: Path, needed: bool) -> Iterator[tuple[Path | None, dict[str, int]]]:
    """The ONNX file an artifact was compiled from, and the bounds of its integer inputs; (None, {}) if it is gone."""
    import onnx

    from subtune.verify import integer_limits

    if source.model.startswith("zoo:"):
        from subtune.frontends import load

        proto = load(source.model, dict(source.shapes)).source
        assert isinstance(proto, onnx.ModelProto)
        path = scratch / "model.onnx"
        onnx.save(proto, path)
    else:
        path = Path(source.model)
        if not source.model or not path.is_file():
            if needed:
                where = source.model or "a model in memory"
                raise ArtifactError(f"the artifact was compiled from {where}, which is not there to compare with")
            yield None, {}
            return
        if source.sha256 and hashlib.sha256(path.read_bytes()).hexdigest() != source.sha256:
            raise ArtifactError(f"{path} has changed since the artifact was compiled from it; compile it again")
    yield path, integer_limits(onnx.load(path, load_external_data=False))
