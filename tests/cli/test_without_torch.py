"""Commands do not wait for PyTorch, which TVM imports wherever it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_THERE = """
import sys
from subtune.cli import main
assert main(["db", "list", "--db", sys.argv[1]]) == 0
import tvm
assert tvm.__spec__.loader.get_source("tvm")
import torch
"""


def _call(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a new process, where PyTorch is a module that says that it was imported."""
    (tmp_path / "torch.py").write_text('print("PyTorch")')
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, *arguments]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_a_command_leaves_it_out(tmp_path: Path) -> None:
    found = _call(tmp_path, "-m", "subtune", "db", "list", "--db", str(tmp_path / "x.db"))
    assert (found.returncode, found.stdout) == (0, "no records\n")


def test_it_can_be_imported_afterwards(tmp_path: Path) -> None:
    found = _call(tmp_path, "-c", _THERE, str(tmp_path / "x.db"))
    assert (found.returncode, found.stdout) == (0, "no records\nPyTorch\n")


def test_tvm_would_import_it(tmp_path: Path) -> None:
    """Else there is nothing to leave out, and `without_torch` can go. What stands for it here does not satisfy TVM."""
    assert "PyTorch" in _call(tmp_path, "-c", "import tvm").stdout
