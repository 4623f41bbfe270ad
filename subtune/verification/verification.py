"""The comparison of one compile: which reference, when it is made, and what the report says of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from importlib.util import find_spec
from typing import TYPE_CHECKING

from subtune.backends import host_device
from subtune.core.errors import VerificationError
from subtune.core.numerics import Numerics
from subtune.frontends import Imported
from subtune.verification.references import precision_reference, untuned_reference
from subtune.verification.verify import (
    CannotRun,
    Reference,
    VerifyReport,
    integer_limits,
    onnxruntime_reference,
    verify,
)

if TYPE_CHECKING:
    from subtune.artifact import Artifact

_SHOWN_OF_AN_ERROR = 200


class Verification:
    """Compares an artifact with a reference, which is made for it then, before it is put in its place.

    The reference is ONNX Runtime, or the untuned build, which `beside` compiles beside the tuned one. ONNX Runtime has
    copies of the weights of its own: it starts once ours are in the artifact's file. A model that it cannot run is
    imported again by `again`.
    """

    def __init__(self, imported: Imported, again: Callable[[], Imported], numerics: Numerics, beside: Executor) -> None:
        self._again, self._numerics, self._beside = again, numerics, beside
        self._device = host_device(numerics)
        self._source = imported.source
        self._limits = integer_limits(self._source) if self._source is not None else {}
        has_other = self._source is not None and find_spec("onnxruntime") is not None
        self._untuned = None if has_other else untuned_reference(imported, self._device, beside)
        self.summary = ""

    def check(self, artifact: Artifact) -> None:
        """Raises VerificationError where the artifact disagrees with the reference; `summary` says how it agrees."""
        try:
            try:
                reference, name = self._reference(True)
                report = self._compared(artifact, reference, name)
            except CannotRun as e:
                reference, name = self._reference(False)
                report = self._compared(artifact, reference, name)
                name += f", as ONNX Runtime cannot run the model ({str(e)[:_SHOWN_OF_AN_ERROR]})"
        except VerificationError as e:
            if self._numerics.half:
                precision = self._numerics.precision
                raise VerificationError(f"{e}; {precision} costs this model too much, use --precision fp32") from e
            if self._numerics.exact:
                raise
            raise VerificationError(f"{e}; --exact leaves out the kernels that round differently") from e
        self.summary = self._said(name, report)

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

    def _reference(self, with_onnxruntime: bool) -> tuple[Reference, str]:
        if self._untuned is None and with_onnxruntime:
            found = onnxruntime_reference(self._source, threads=self._device.model.host.threads)
            if found is not None:
                return found, "ONNX Runtime"
        untuned = self._untuned or untuned_reference(self._again(), self._device, self._beside)
        return untuned, "the untuned build"

    def _compared(self, artifact: Artifact, reference: Reference, name: str) -> VerifyReport:
        precision = self._numerics.precision
        own = precision_reference(self._again, self._numerics) if self._numerics.half and self._source else None
        return verify(artifact, reference, name, limits=self._limits, precision=precision, own=own)
