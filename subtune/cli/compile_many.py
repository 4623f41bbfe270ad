"""`subtune compile` of several models: an artifact of each; one that fails is a sentence, and the others go on."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from subtune.cli.default_names import default_output
from subtune.cli.failures import explained
from subtune.core.errors import ModelError
from subtune.core.manifest import MANIFEST_NAME

_INTERRUPTED = 130

_CompileOne = Callable[[argparse.Namespace, str, str, str | None], Any]
"""Takes the options, a model, the path of its artifact, and where modules are dumped; gives a report."""


def run_many(args: argparse.Namespace, compile_one: _CompileOne) -> int:
    """Exit code 0 if all are compiled, else the largest of those that failed; 130 where Ctrl-C ended it."""
    models = models_of(args.models)
    outputs = outputs_of(models, args.output)
    rows: list[dict[str, Any]] = []
    codes = [0]
    for count, (model, output) in enumerate(zip(models, outputs, strict=True), start=1):
        row, code = _compiled(args, compile_one, model, output, f"{count}/{len(models)} {model}")
        rows.append(row)
        codes.append(code)
        if code == _INTERRUPTED:
            break
    done = sum(row["error"] is None for row in rows)
    if args.json:
        print(json.dumps({"compiled": done, "models": rows}, indent=2))
    else:
        print(f"{done} of {len(models)} models compiled")
    return max(codes)


def holds_models(name: str) -> bool:
    """Whether it is a directory that is no artifact: a compile says what it thinks of one."""
    return Path(name).is_dir() and not (Path(name) / MANIFEST_NAME).is_file()


def models_of(given: list[str]) -> list[str]:
    """`given`, with the ONNX files of a directory, in the order of their names, in its place.

    Raises:
        ModelError: a directory has no ONNX file.
    """
    found: list[str] = []
    for name in given:
        if not holds_models(name):
            found.append(name)
            continue
        files = sorted(str(path) for path in Path(name).iterdir() if path.suffix == ".onnx" and path.is_file())
        if not files:
            raise ModelError(f"{name} has no ONNX file: name the models, or a directory with some")
        found += files
    return list(dict.fromkeys(found))


def outputs_of(models: list[str], output: str | None) -> list[str]:
    """An artifact's path for each model, in the directory `output`, which is made, or in the working directory.

    Raises:
        ModelError: two models would have one path, or there can be no such directory.
    """
    folder = Path(output or ".")
    names = [default_output(model) for model in models]
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        both = ", ".join(model for model, own in zip(models, names, strict=True) if own == name)
        raise ModelError(f"{both} would all become {folder / name}: compile them one by one, with -o")
    if output is not None and folder.suffix == ".subtune":
        raise ModelError(f"-o {output} is for one model: of several, give the directory for their artifacts")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as e:
        raise ModelError(f"no artifacts can be put in {folder}: {e.strerror or e}") from e
    return [str(folder / name) for name in names]


def _compiled(
    args: argparse.Namespace, compile_one: _CompileOne, model: str, output: str, title: str
) -> tuple[dict[str, Any], int]:
    """What is reported of one model, and its exit code."""
    from subtune.artifact.destination import check_destination

    row: dict[str, Any] = {"model": model, "artifact": None, "error": None, "report": None}
    dump = str(Path(args.dump) / Path(output).stem) if args.dump else None
    if not args.json:
        print(f"== {title}", flush=True)
    try:
        check_destination(output)
        report = compile_one(args, model, output, dump)
    except Exception as e:
        if args.debug:
            raise
        text, code = explained(e)
        print(f"subtune: {model}: {text}", file=sys.stderr, flush=True)
        return {**row, "error": text.partition(": ")[2]}, code
    if not args.json:
        print(report, flush=True)
    found = {**row, "artifact": output, "report": json.loads(report.to_json())}
    return found, _INTERRUPTED if report.is_interrupted else 0
