"""The comparison of one compile: which reference, when it is made, and what the report says of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from subtune.backends import host_device
from subtune.core.errors import VerificationError
from subtune.core.numerics import Numerics
from subtune.core.reference import CannotRun, Reference
from subtune.frontends import Imported
from subtune.verification.references import UntunedBuild, precision_reference
from subtune.verification.sensitivity import TIMES, sensitivities
from subtune.verification.verify import Disagrees, VerifyReport, verify

if TYPE_CHECKING:
    from subtune.artifact import Artifact

_SHOWN_OF_AN_ERROR = 200


class Verification:
    """Compares an artifact with a reference, which is started then, before the artifact is put in its place.

    The reference is the model's own, or the untuned build, which `beside` compiles beside the tuned one. Another
    runtime has copies of the weights of its own: it starts once ours are in the artifact's file. A model that it cannot
    run is imported again by `again`.
    """

    def __init__(self, imported: Imported, again: Callable[[], Imported], numerics: Numerics, beside: Executor) -> None:
        self._again, self._numerics, self._beside = again, numerics, beside
        self._device = host_device(numerics)
        self._threads = self._device.model.host.threads
        other = imported.reference
        self._has_other = other is not None
        self._reference: Reference = (
            other if other is not None and other.is_installed else UntunedBuild(imported, self._device, beside)
        )
        self._limits = other.limits() if other is not None else {}
        self.summary = ""

    def check(self, artifact: Artifact) -> None:
        """Raises VerificationError where the artifact disagrees with the reference; `summary` says how it agrees."""
        try:
            try:
                self.summary = self._compared(artifact, self._reference)
            except CannotRun as e:
                name, self._reference = self._reference.name, UntunedBuild(self._again(), self._device, self._beside)
                why = f", as {name} cannot run the model ({str(e)[:_SHOWN_OF_AN_ERROR]})"
                self.summary = self._compared(artifact, self._reference, why)
        except MemoryError as e:
            raise VerificationError(f"too little memory to run the model here ({e}); --no-verify does not") from e
        except VerificationError as e:
            if self._numerics.half:
                precision = self._numerics.precision
                raise VerificationError(f"{e}; {precision} costs this model too much, use --precision fp32") from e
            if self._numerics.exact:
                raise
            raise VerificationError(f"{e}; --exact leaves out the kernels that round differently") from e

    def _compared(self, artifact: Artifact, reference: Reference, why: str = "") -> str:
        """The summary. Raises VerificationError, CannotRun."""
        run = reference.start(self._threads)
        if run is None:
            raise CannotRun("it refuses the model")
        precision, half = self._numerics.precision, self._numerics.half
        own = precision_reference(self._again, self._numerics) if half and self._has_other else None
        try:
            report = verify(artifact, run, reference.name, limits=self._limits, precision=precision, own=own)
        except Disagrees as e:
            if half:
                raise
            del run
            return self._excused(artifact, reference, e, why)
        return self._said(reference.name + why, report)

    def _excused(self, artifact: Artifact, reference: Reference, disagreement: Disagrees, why: str) -> str:
        """The summary where the model's own sensitivity explains the error, which takes several runs to see."""
        names = [error.name for error in disagreement.report.wrong]
        found = sensitivities(artifact, reference, self._threads, self._limits, names)
        if refused := [one for one in found if not one.is_excused]:
            raise VerificationError(f"{disagreement}; {'; '.join(map(str, refused))}") from disagreement
        worst = max(found, key=lambda one: one.amplification)
        return f"agrees with {reference.name}{why} up to {TIMES:g} times what rounding does to this model; {worst}"

    def _said(self, name: str, report: VerifyReport) -> str:
        if not self._numerics.half:
            return f"agrees with {name}: largest relative error {report.max_rel:.1e}"
        summary = (
            f"against {name} in float32: largest error {report.max_rel:.1e} of the largest value, "
            f"cosine similarity {report.min_cosine:.5f}"
        )
        if report.own_rel:
            summary += f"; with default schedules {self._numerics.precision} loses {report.own_rel:.1e}"
        return summary
