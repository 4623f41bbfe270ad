"""What a stored measurement depends on besides its workload: the device, TVM, the backend, the candidate's family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from subtune.core.candidate import DEFAULT


@dataclass(frozen=True, slots=True)
class Versions:
    """Of all that decides what a candidate's name means and how fast its kernel is.

    `common` names what all families share, such as `tvm-0.27.0/cpu-1`; `families` has each one's own. The default
    family counts for all: its results are what others are compared with.
    """

    common: str
    families: tuple[tuple[str, int], ...] = ()

    @property
    def base(self) -> str:
        return f"{self.common}/{self._tag(DEFAULT.family)}"

    def of(self, family: str) -> str:
        """The key of measurements of the family's candidates."""
        return f"{self.base}/{self._tag(family)}"

    def version(self, family: str) -> int:
        """0 for a family that is not known, of another program or of a test."""
        return dict(self.families).get(family, 0)

    def differs(self, others: Mapping[str, int]) -> bool:
        """Whether `others`, the families' versions of some other day, are not those of `families`."""
        return dict(others) != dict(self.families)

    def _tag(self, family: str) -> str:
        return f"{family}-{self.version(family)}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Under what a measurement holds: a device's fingerprint, with where kernels find their data, and all versions."""

    device: str
    versions: Versions
