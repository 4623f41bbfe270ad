"""The hardware model: frozen data, the same in every process."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from subtune.backends.base import Host, OneState
from subtune.backends.cpu.device import CPU, CPUModel


@dataclass(frozen=True, slots=True)
class ScalarModel(OneState):
    """One thread of the processor `cpu`, without its vectors."""

    cpu: CPUModel
    name: str = "scalar"
    description: str = "one scalar thread"
    dram_bytes_per_s: float = 10e9
    operations_per_s: float = 1e9
    between_kernels_s: float = 0.0

    @classmethod
    def here(cls) -> ScalarModel:
        return cls(replace(CPU("auto"), threads=1))

    @property
    def host(self) -> Host:
        return self.cpu.host

    def target(self):
        return self.cpu.target()

    def obstacle(self) -> str:
        return self.cpu.obstacle()

    def fingerprint(self) -> str:
        return f"scalar/{self.cpu.name}"

    def peak_flops(self, dtype: str = "") -> float:
        return self.operations_per_s

    def comes_from_memory(self, weights_bytes: int) -> bool:
        return weights_bytes > self.cpu.l3_bytes

    def to_json(self) -> str:
        return json.dumps({"operations_per_s": self.operations_per_s})

    def overridden(self, path: str | os.PathLike[str], threads: int | None = None) -> ScalarModel:
        return replace(self, **json.loads(Path(path).read_text(encoding="utf-8")))
