"""A dynamic artifact compared with the model's reference at some of its instances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from subtune.artifact import Artifact
from subtune.core.domain import Domain
from subtune.core.errors import UnsupportedOpsError, VerificationError
from subtune.core.numerics import Numerics
from subtune.core.tensor_spec import TensorSpec
from subtune.dynamic.points import last_multiples
from subtune.frontends import Imported
from subtune.verification.verification import Verification


@dataclass(frozen=True, slots=True)
class AtInstance:
    """An artifact of which one instance is looked at: as if it were compiled for that alone."""

    artifact: Artifact
    values: Mapping[str, int]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(spec.at(self.values) for spec in self.artifact.inputs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(spec.at(self.values) for spec in self.artifact.outputs)

    @property
    def manifest(self) -> Any:
        return SimpleNamespace(domain=SimpleNamespace(greatest={}))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return self.artifact.run(inputs)


def instances_to_verify(domain: Domain) -> list[dict[str, int]]:
    """The least, the greatest, two between, at which no tile ends by itself, and the last where tiles do.

    What is rounded down is told from what is rounded up by that one alone: models are compared at odd values.
    """
    found = [{one.name: one.values[0] for one in domain.symbols}, domain.greatest]
    for share in (0.37, 0.71):
        found.append({one.name: one.values[int(share * (len(one.values) - 1))] for one in domain.symbols})
    found.append(last_multiples(domain))
    return [point for i, point in enumerate(found) if point not in found[:i]]


class DynamicVerification:
    """The check of an artifact before it is put in its place. `summary` says how it agrees."""

    def __init__(
        self, domain: Domain, load: Callable[[Mapping[str, int]], Imported], numerics: Numerics, beside: Executor
    ) -> None:
        self._domain, self._load, self._numerics, self._beside = domain, load, numerics, beside
        self.summary = ""

    def check_sizes(self, artifact: Artifact) -> None:
        """Without running anything. Raises UnsupportedOpsError: outputs have other sizes than the artifact says."""
        for point in instances_to_verify(self._domain):
            self._check_sizes(self._load(point), artifact, point)

    def check(self, artifact: Artifact) -> None:
        """Raises VerificationError: it disagrees with the reference at an instance."""
        points = instances_to_verify(self._domain)
        for point in points:
            imported = self._load(point)
            self._check_sizes(imported, artifact, point)
            one = Verification(imported, lambda point=point: self._load(point), self._numerics, self._beside)  # type: ignore[misc]
            try:
                one.check(AtInstance(artifact, point))  # type: ignore[arg-type]
            except VerificationError as e:
                where = ", ".join(f"{name}={value}" for name, value in point.items())
                raise VerificationError(f"at {where}: {e}") from e
            self.summary = one.summary
        self.summary += f", at {len(points)} instances"

    def _check_sizes(self, imported: Imported, artifact: Artifact, point: Mapping[str, int]) -> None:
        """Before anything is run: kernels write as much as the artifact's shapes say."""
        for own, spec in zip(imported.outputs, artifact.outputs, strict=True):
            if own.sizes != spec.at(point).sizes:
                where = ", ".join(f"{name}={value}" for name, value in point.items())
                raise UnsupportedOpsError(
                    f"The size of {own.name!r} is no polynomial of the symbols: {list(own.sizes)} at {where}, and "
                    f"{list(spec.shape)} elsewhere; declare other values, or give the dimensions a value with --shape."
                )
