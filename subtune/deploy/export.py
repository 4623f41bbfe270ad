"""An artifact -> a directory, or a wheel, that runs where there is no subtune, no TVM and no compiler."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from subtune.artifact import Artifact, load
from subtune.artifact import manifest as manifests
from subtune.artifact.destination import writing
from subtune.artifact.exchange_paths import exchange
from subtune.core.errors import ArtifactError
from subtune.core.manifest import MANIFEST_NAME, TRACE_NAME, WEIGHTS_NAME
from subtune.core.scratch import scratch
from subtune.deploy import build, runtime_files, trial, wheel
from subtune.deploy.readme import readme

_STAGING = ".subtune-export"
_LOADER = Path(__file__).with_name("loader.py")
_MIB = float(1 << 20)


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and what it takes.

    Attributes:
        form: "standalone", a directory, or "wheel".
        path: of the directory, or of the wheel's file.
        weights_bytes: of the model's weights.
        model_bytes: of its code and its manifest.
        runtime_bytes: of TVM's runtime libraries and of the loader's.
        other_bytes: of headers, sources, licences and the page that explains them.
        startup_s: seconds that a process takes that loads the model and runs its least instance: the least of several.
    """

    form: str
    name: str
    path: str
    weights_bytes: int
    model_bytes: int
    runtime_bytes: int
    other_bytes: int
    startup_s: float

    @property
    def beside_weights_bytes(self) -> int:
        return self.model_bytes + self.runtime_bytes + self.other_bytes

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "beside_weights_bytes": self.beside_weights_bytes}, indent=1)

    def __str__(self) -> str:
        return (
            f"wrote {self.path}\n"
            f"weights {self.weights_bytes / _MIB:.1f} MiB, beside them {self.beside_weights_bytes / _MIB:.1f} MiB: "
            f"code {self.model_bytes / _MIB:.1f}, runtime {self.runtime_bytes / _MIB:.1f}, "
            f"other {self.other_bytes / _MIB:.1f}\n"
            f"a process has its first result {self.startup_s * 1e3:.0f} ms after it starts; it is equal bit for bit to "
            "that of subtune.load"
        )


def export_standalone(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Exported:
    """Write a directory with the model, TVM's runtime, a loader in C and in Python, and a program that runs it.

    The program's outputs are compared with `Artifact.run`'s before the directory appears; one that an earlier export
    wrote is replaced.

    Args:
        path: the artifact; it has to be one for this machine.
        folder: what to write.

    Raises:
        ArtifactError: the artifact is damaged, for another machine, or needs TVM's virtual machine; there is no C
            compiler; or something else lies at `folder`.
    """
    target = Path(folder)
    _check_free(target)
    with _artifact(path) as artifact, _staged(target) as staging:
        _fill(staging, artifact)
        startup_s = trial.of_program(staging / "bin" / "run", staging / "model", artifact)
        return _exported("standalone", artifact.manifest.name, target, staging, startup_s)


def export_wheel(
    path: str | os.PathLike[str], folder: str | os.PathLike[str], name: str | None = None, version: str = "1.0"
) -> Exported:
    """Write a wheel that needs numpy alone: `import NAME; NAME.load().run({...})`.

    Args:
        path: the artifact; it has to be one for this machine.
        folder: the directory to put the wheel in; it is made where it is missing.
        name: of the package (default: the artifact's).
        version: of the package, as Python's packages number theirs.

    Raises:
        ArtifactError: as `export_standalone`, or no package can have such a name or version.
    """
    target = Path(folder)
    with _artifact(path) as artifact:
        package = wheel.Package(_package_name(name, artifact.manifest.name), version)
        with writing(target):
            target.mkdir(exist_ok=True)
        with _staged(target / package.name, is_kept=False) as staging:
            root = staging / package.name
            root.mkdir()
            _copy_model(root, artifact)
            _copy_runtime(root / "lib", staging.parent / "include")
            shutil.copy(_LOADER, root / "_loader.py")
            (root / "__init__.py").write_text(wheel.init_text(artifact.manifest))
            startup_s = trial.of_package(staging, package.name, artifact)
            with writing(target):
                file = wheel.write(staging, package, artifact.manifest, target)
            return _exported("wheel", package.name, file, staging, startup_s)


@contextmanager
def _artifact(path: str | os.PathLike[str]) -> Iterator[Artifact]:
    artifact = load(path, check=True, share_weights=True)
    runtime_files.check_exportable(Path(path), artifact.manifest)
    yield artifact


def _fill(staging: Path, artifact: Artifact) -> None:
    _copy_model(staging, artifact)
    _copy_runtime(staging / "lib", staging / "include")
    (staging / "bin").mkdir()
    build.build_program(staging / "include", staging / "lib", staging / "bin" / "run")
    (staging / "src").mkdir()
    for source in build.NATIVE.iterdir():
        place = {".c": staging / "src", ".h": staging / "src"}.get(source.suffix, staging)
        shutil.copyfile(source, (staging / "include" if source.name == "subtune.h" else place) / source.name)
    shutil.copyfile(_LOADER, staging / "subtune_model.py")
    (staging / "licences").mkdir()
    for name, licence in runtime_files.licences().items():
        shutil.copyfile(licence, staging / "licences" / name)
    (staging / "README.md").write_text(readme(artifact.manifest))


def _copy_model(root: Path, artifact: Artifact) -> None:
    """All but what traces need, which want subtune."""
    (root / "model").mkdir()
    files = tuple(entry for entry in artifact.manifest.files if entry.name != TRACE_NAME)
    for entry in files:
        shutil.copyfile(artifact.path / entry.name, root / "model" / entry.name)
    manifests.write(root / "model", replace(artifact.manifest, files=files))


def _copy_runtime(libraries: Path, include: Path) -> None:
    """TVM's runtime and the loader in `libraries`, their headers in `include`."""
    libraries.mkdir()
    for library in runtime_files.runtime_libraries():
        shutil.copyfile(library, libraries / library.name)
    for name, header in runtime_files.headers().items():
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(header, include / name)
    build.build_loader(include, libraries)


def _package_name(given: str | None, name: str) -> str:
    if given is None:
        found = re.sub(r"\W", "_", name, flags=re.ASCII).lower()
        return found if found[:1].isalpha() else f"model_{found}"
    return given


def _check_free(folder: Path) -> None:
    if not folder.parent.is_dir():
        raise ArtifactError(f"cannot write {folder}: the directory {folder.parent} does not exist")
    if not folder.exists() and not folder.is_symlink():
        return
    is_ours = (folder / "include" / "subtune.h").is_file() and (folder / "model" / MANIFEST_NAME).is_file()
    if folder.is_symlink() or not folder.is_dir() or (any(folder.iterdir()) and not is_ours):
        raise ArtifactError(f"{folder} is in the way: it is not what an export wrote; choose another name")


@contextmanager
def _staged(target: Path, is_kept: bool = True) -> Iterator[Path]:
    """A directory to fill, beside `target`; it takes that place at the end, or is gone."""
    with writing(target):
        place = scratch(f".{target.name}.", _STAGING, target.parent)
    try:
        staging = place.path / target.name
        with writing(target):
            staging.mkdir()
            yield staging
            if is_kept and not exchange(staging, target):
                if target.exists():
                    shutil.rmtree(target)
                staging.rename(target)
    finally:
        place.remove()


def _exported(form: str, name: str, path: Path, root: Path, startup_s: float) -> Exported:
    sizes = {"weights": 0, "model": 0, "lib": 0, "other": 0}
    for file in root.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            kind = "weights" if file.name == WEIGHTS_NAME else file.parent.name
            sizes[kind if kind in sizes else "other"] += file.stat().st_size
    return Exported(form, name, str(path), sizes["weights"], sizes["model"], sizes["lib"], sizes["other"], startup_s)
