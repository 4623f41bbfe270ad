"""What the documents say is true: their code and their commands run, their paths exist, their figures are measured."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import runpy
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as h
import pytest

import subtune
from subtune import models
from subtune.bench.render import BEGIN, END
from subtune.cli.main import build_parser, main
from subtune.measure import LocalMeasurer
from tests.borrowed import lent
from tests.dynamic.models import decoder
from tests.whole import IS_WHOLE

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
LONG = ("generate", "models", "quantised", "tutorial")
"""Pages whose commands take long, and are run by other tests on other models."""
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"])
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))

DOCUMENTED = {
    "subtune.driver": "compile",
    "subtune.quantizer": "quantize",
    "subtune.artifact.model": "load",
    "subtune.integrations.inference_session": "InferenceSession",
    "subtune.backends": "candidates",
    "subtune.frontends.dispatch": "load",
    "subtune.passes.partition": "partition",
    "subtune.tuning.search": "tune_subgraph",
}
"""By module, a function whose docstring must hold an example: the pieces that are of use alone."""

SMALLER = {
    "zoo:resnet18": "zoo:mlp?image=8&batch=1",
    "zoo:resnet18-int8": "zoo:mlp-int8?image=8&batch=1",
    "past=0..512": "past=0..24",
    "seq=1..64": "seq=1..4",
    "60s": "3s",
}
"""What commands are run on here, so that they end in seconds: smaller networks, shorter caches, less time."""
QUICK = {
    "compile": ["--topk", "1"],
    "bench": ["--rounds", "1", "--round-time", "50ms"],
    "compare": ["--topk", "1"],
}
"""Options that end a command early, behind its own: the last one counts."""
ABSENT = re.compile(
    r"no GPU to read|needs a processor with AVX512-BF16|no linker for|fp16 is for GPUs|nothing here compiles CUDA"
    r"|is not installed|not installed \(|the loader cannot be built"
)
"""What a machine may lack: the command is right nevertheless."""
NEEDED = {
    "export_torch": ("torch",),
    "export_gpt2": ("torch", "transformers", "onnxscript"),
    "kserve_model": ("kserve",),
    "triton_model": ("triton_python_backend_utils",),
}
"""Modules of examples that are no dependencies of subtune."""
NEEDED_BY_PAGES = {"pytorch": ("torch", "onnxscript")}
"""And of pages."""
LANGUAGES = {"python", "bash", "text", "toml", "json", "cpp", "cmake", "c++", "c", "yaml", "mermaid", ""}


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """The blocks of a language in a Markdown file, each with the number of its first line."""
    found = re.finditer(rf"^```{language}\b[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every line of a page's bash blocks that calls subtune."""
    for _, block in blocks(page.read_text(encoding="utf-8"), "bash"):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if line.startswith("subtune "):
                yield shlex.split(line, comments=True)[1:]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for all pages: they compile the same few models, which then are tuned once, as by a reader."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def warm(workers: LocalMeasurer) -> Iterator[None]:
    with lent(workers):
        yield


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples may write files, and may use the user's database: both are the tests' own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return subtune.compile(classifier(), output=tmp_path_factory.mktemp("artifact") / "a.subtune", tune=False).path


@pytest.fixture
def files(tmp_path: Path, artifact: Path) -> None:
    """The files that the pages take for granted."""
    onnx.save(classifier(), tmp_path / "classifier.onnx")
    onnx.save(models.reduced("mlp"), tmp_path / "model.onnx")
    x, y = (h.make_tensor_value_info(name, 1, ["batch", 8]) for name in "xy")
    onnx.save(h.make_model(h.make_graph([h.make_node("Relu", ["x"], ["y"])], "g", [x], [y])), tmp_path / "dynamic.onnx")
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    shutil.copytree(artifact, tmp_path / "classifier.subtune")
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 64, 64), "float32"))
    samples = np.random.default_rng(0).standard_normal((16, 16, 16, 3), dtype="float32")
    np.savez(tmp_path / "calib.npz", input=samples)


def classifier() -> onnx.ModelProto:
    """What `docs/examples/export_torch.py` exports, without PyTorch."""
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(rng.normal(0, 0.1, shape).astype("float32"), name)

    nodes = [
        h.make_node("Conv", ["image", "w0", "b0"], ["c0"], strides=[2, 2], pads=[1, 1, 1, 1]),
        h.make_node("Relu", ["c0"], ["r0"]),
        h.make_node("Conv", ["r0", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        h.make_node("Relu", ["c1"], ["r1"]),
        h.make_node("GlobalAveragePool", ["r1"], ["p"]),
        h.make_node("Flatten", ["p"], ["f"]),
        h.make_node("Gemm", ["f", "w2", "b2"], ["g"], transB=1),
        h.make_node("Softmax", ["g"], ["scores"], axis=1),
    ]
    shapes = {"w0": (32, 3, 3, 3), "b0": (32,), "w1": (64, 32, 3, 3), "b1": (64,), "w2": (10, 64), "b2": (10,)}
    graph = h.make_graph(
        nodes,
        "classifier",
        [h.make_tensor_value_info("image", 1, [1, 3, 64, 64])],
        [h.make_tensor_value_info("scores", 1, [1, 10])],
        [weights(name, *shape) for name, shape in shapes.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = {test.name: test for test in finder.find(module, module.__name__) if test.examples}
    assert f"{name}.{DOCUMENTED[name]}" in tests, "it has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in tests.values():
        report: list[str] = []
        runner.run(test, out=report.append)
        assert not report, "".join(report)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples(path: Path) -> None:
    """The files that pages show: each runs, and asserts what the page says of it."""
    for module in NEEDED.get(path.stem, ()):
        pytest.importorskip(module)
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_commands(page: Path) -> None:
    for arguments in commands(page):
        build_parser().parse_args(arguments)  # exits where it does not know an option


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if (IS_WHOLE or page.stem not in LONG)
        and (list(commands(page)) or blocks(page.read_text(encoding="utf-8"), "python"))
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands in their order, and then its Python, in one directory."""
    for module in NEEDED_BY_PAGES.get(page.stem, ()):
        pytest.importorskip(module)
    if page.stem == "pytorch":
        register_backend()
    text = page.read_text(encoding="utf-8")
    for arguments in commands(page):
        given = [SMALLER.get(argument, argument) for argument in arguments]
        if "WORKLOAD" in given:
            main(["db", "list"])
            given[given.index("WORKLOAD")] = capsys.readouterr().out.split()[0]
        if "--suite" in given:
            continue  # hours; `tests/bench` runs each on a case
        given += QUICK.get(given[0], [])
        given += ["--budget", "2s"] if "--dynamic" in given else []
        code = main(given)
        said = capsys.readouterr()
        assert code == 0 or ABSENT.search(said.err), f"subtune {' '.join(given)}: {said.err}"
    namespace = {"__name__": "page"}
    for line, code in blocks(text, "python"):
        if "--8<--" not in code:  # what is included is run by `test_examples`
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


def register_backend() -> None:
    """Of `torch.compile`: a checkout that is not installed has no entry points."""
    from torch._dynamo.backends import registry

    from subtune.integrations.torch.backend import subtune as backend

    if "subtune" not in registry.list_backends():
        registry.register_backend(backend, name="subtune")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem != "CHANGELOG"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_what_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in re.findall(r"`([\w./-]+)`", text) if not exists(name)]
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not (page.parent / target).exists():
            missing.append(target)
    for name in re.findall(r'--8<-- "([^":]+)', text):
        if not any((ROOT / base / name).is_file() for base in ("docs", "tests")):
            missing.append(name)
    assert not missing


def exists(name: str) -> bool:
    """Whether a path below a room, or a dotted name of subtune's, is there; True for whatever is neither."""
    if re.match(r"(subtune|frontends|passes|models|tests|docs|benchmarks|\.ci)/", name):
        place = name.rstrip("/")
        return (ROOT / place).exists() or (ROOT / "subtune" / place).exists()
    if not re.match(r"subtune\.[a-z_]+(\.\w+)*$", name) or name == "subtune.egg":
        return True
    module, _, rest = name, "", ""
    while module and not _is_module(module):
        module, _, last = module.rpartition(".")
        rest = f"{last}.{rest}" if rest else last
    found = importlib.import_module(module)
    for part in rest.split(".") if rest else ():
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_the_readme_is_short() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 130
    table = lines[lines.index(BEGIN) + 1 : lines.index(END)]
    assert 3 <= sum(line.startswith("|") for line in table) <= 2 + 12


def test_no_paragraph_of_numbers() -> None:
    text = README.read_text(encoding="utf-8")
    text = text[: text.index(BEGIN)] + text[text.index(END) :]
    for paragraph in text.split("\n\n"):
        assert len(re.findall(r"\d+(?:\.\d+)?", paragraph)) <= 12, paragraph


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_say_their_language(page: Path) -> None:
    fences = re.findall(r"^```([\w+]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(opening in LANGUAGES - {""} for opening in fences[::2])


def test_quoted_errors_are_in_the_source() -> None:
    """Every message that the troubleshooting page quotes: its words, between what is filled in."""
    source = "\n".join(path.read_text(encoding="utf-8") for room in ("subtune", "frontends", "passes", "models")
                       for path in (ROOT / room).rglob("*.py"))  # fmt: skip
    joined = re.sub(r'"\s*\n?\s*f?"', "", source)
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^### `(.+)`$", text, re.MULTILINE)
    assert len(quoted) >= 20
    gone = [part for message in quoted for part in message.split("…") if part.strip(" .,:;'") not in joined]
    assert not gone


def test_blocks_are_found() -> None:
    text = "a\n```python\nx = 1\ny = 2\n```\n```\nno\n```\n```sh\nls\n```\n```python title\nz = 3\n```\n"
    assert blocks(text, "python") == [(3, "x = 1\ny = 2\n"), (13, "z = 3\n")]


def test_scripts_are_executable() -> None:
    for script in ("benchmarks/run", "docs/output/make"):
        assert shutil.which(str(ROOT / script)) is not None
