"""A wheel: a zip of a package and what installers want to know of it (PyPA's binary distribution format, 1.0)."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import subtune
from subtune.core.errors import ArtifactError
from subtune.core.manifest import WEIGHTS_NAME, Manifest
from subtune.deploy import runtime_files

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")


@dataclass(frozen=True, slots=True)
class Package:
    """Raises ArtifactError for a name that Python cannot import, or a version that its installers do not read."""

    name: str
    version: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ArtifactError(f"{self.name!r} is no name of a package: give letters, digits and _, such as my_model")
        if not _VERSION.fullmatch(self.version):
            raise ArtifactError(f"{self.version!r} is no version of a package: give one such as 1.0 or 2.1.post3")


def init_text(manifest: Manifest) -> str:
    """The package's `__init__.py`."""
    taken, given = (", ".join(map(str, specs)) for specs in (manifest.inputs, manifest.outputs))
    return (
        f'"""{manifest.name}: ({taken}) -> ({given})."""\n'.replace("\\", "\\\\")
        + "from pathlib import Path\n\n"
        + "from ._loader import Model, ModelError\n\n"
        + '__all__ = ["Model", "ModelError", "load"]\n'
        + "_HERE = Path(__file__).parent\n\n\n"
        + "def load(threads=0):\n"
        + '    """The model, run by `threads` threads; 0: by as many as it was tuned for."""\n'
        + '    return Model(_HERE / "model", _HERE / "lib", threads)\n'
    )


def write(root: Path, package: Package, manifest: Manifest, target: Path) -> Path:
    """The wheel of the package that lies in `root`, in the directory `target`; an older one is replaced."""
    libraries = [path for path in sorted(root.rglob("*.so")) if path.is_file()]
    major, minor = runtime_files.least_glibc(libraries)
    tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
    file = target / f"{package.name}-{package.version}-{tag}.whl"
    info = f"{package.name}-{package.version}.dist-info"
    texts = {
        f"{info}/METADATA": _metadata(package, manifest),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: subtune {subtune.__version__}\nRoot-Is-Purelib: false\n"
        f"Tag: {tag}\n",
        **{f"{info}/licenses/{name}": path.read_text() for name, path in runtime_files.licences().items()},
    }
    handle, part = tempfile.mkstemp(dir=target, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            _fill(archive, root, texts, f"{info}/RECORD")
        os.chmod(part, 0o644)
        os.replace(part, file)
    except BaseException:
        os.unlink(part)
        raise
    return file


def _fill(archive: zipfile.ZipFile, root: Path, texts: dict[str, str], record: str) -> None:
    lines = []
    for path in sorted(root.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        name = path.relative_to(root).as_posix()
        entry = zipfile.ZipInfo(name)
        entry.external_attr = (0o755 if path.suffix == ".so" else 0o644) << 16
        # Weights are what does not become smaller, and takes longest.
        entry.compress_type = zipfile.ZIP_STORED if path.name == WEIGHTS_NAME else zipfile.ZIP_DEFLATED
        entry.file_size = path.stat().st_size
        with path.open("rb") as source, archive.open(entry, "w") as to:
            while piece := source.read(1 << 22):
                to.write(piece)
        with path.open("rb") as source:
            lines.append(f"{name},sha256={_digest(hashlib.file_digest(source, 'sha256').digest())},{entry.file_size}")
    for name, text in texts.items():
        data = text.encode()
        archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        lines.append(f"{name},sha256={_digest(hashlib.sha256(data).digest())},{len(data)}")
    archive.writestr(zipfile.ZipInfo(record), "\n".join([*lines, f"{record},,", ""]))


def _digest(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _metadata(package: Package, manifest: Manifest) -> str:
    own = ("float32", "float64", "float16", "bool")
    dtypes = {spec.dtype for spec in (*manifest.inputs, *manifest.outputs)}
    needs_more = any(dtype not in own and not re.fullmatch(r"u?int(8|16|32|64)", dtype) for dtype in dtypes)
    needed = ["numpy", *(["ml_dtypes"] if needs_more else [])]
    summary = " ".join(f"The model {manifest.name}, compiled for {manifest.device}".split())
    return (
        f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\nSummary: {summary}\n"
        "Requires-Python: >=3.10\n" + "".join(f"Requires-Dist: {name}\n" for name in needed)
    )
