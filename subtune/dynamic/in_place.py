"""A decoder's caches kept in place: which inputs they are, at every instance the same, and room for the longest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from subtune.backends.base import Device
from subtune.core.cache import COPIED, IN_PLACE, Cache
from subtune.core.domain import Domain
from subtune.core.errors import ShapeError, SubtuneError, TargetError, UnsupportedOpsError
from subtune.dynamic.arrange import Prepare
from subtune.frontends import SymbolicInput
from subtune.options import Options
from subtune.passes.caches import caches_of, keep_caches
from subtune.passes.extract import extract
from subtune.passes.pad_attention import Lengths
from subtune.pipeline import Prepared


def check_cache(options: Options) -> None:
    """Raises SubtuneError: what is wanted of caches is nothing that there is, or not of such a compile."""
    if options.cache not in (COPIED, IN_PLACE):
        raise SubtuneError(f"cache={options.cache!r} is no way to keep a cache: give {COPIED!r} or {IN_PLACE!r}")
    if options.cache == IN_PLACE and not options.dynamic:
        raise ShapeError(
            f"cache={options.cache!r} is for a cache whose length varies: say which lengths it may have, for example "
            "--dynamic past=0..512"
        )


class CachesInPlace:
    """Prepares instances: those from the greatest on with their caches in place, where `way` says so.

    Attributes:
        caches: of the greatest instance; their capacity is what that needs.

    Raises TargetError: the device does not keep caches in place.
    """

    def __init__(
        self, way: str, device: Device, domain: Domain, inputs: Sequence[SymbolicInput], prepare: Prepare
    ) -> None:
        if way == IN_PLACE and not device.backend.forms(device.model).keeps_caches:
            raise TargetError(
                f"Caches cannot be kept in place on {device.model.name}: every run copies its inputs to the memory "
                "there, and its outputs back; leave --cache out."
            )
        self.caches: tuple[Cache, ...] = ()
        self._is_wanted = way == IN_PLACE
        self._domain, self._prepare = domain, prepare
        self._varying = {
            one.name: [not isinstance(dim, int) and bool({*dim.symbols} & {*domain.names}) for dim in one.shape]
            for one in inputs
        }

    def prepare(self, point: Mapping[str, int], lengths: Lengths) -> Prepared:
        """Raises UnsupportedOpsError: the model has no cache, or others at another instance."""
        prepared = self._prepare(point, lengths)
        is_greatest = point is self._domain.greatest
        if not self._is_wanted or (not is_greatest and not self.caches):
            return prepared  # nobody looks at its subgraphs
        found = [cache for cache in caches_of(prepared.mod) if self._grows(prepared, cache)]
        if is_greatest:
            self.caches = tuple(found)
        if not found:
            raise UnsupportedOpsError(
                "The model has no cache that could be kept in place: an output that is an input of symbolic length, "
                "which nothing else reads, with new rows behind it; leave --cache out."
            )
        if [_place(cache) for cache in found] != [_place(cache) for cache in self.caches]:
            raise UnsupportedOpsError("The model has other caches at other shapes: leave --cache out.")
        mod = keep_caches(prepared.mod, self.caches)
        return replace(prepared, mod=mod, subgraphs=extract(mod))

    def _grows(self, prepared: Prepared, cache: Cache) -> bool:
        """Whether the number of its rows is symbolic."""
        return self._varying[prepared.imported.inputs[cache.input].name][cache.axis]


def _place(cache: Cache) -> tuple[int, int, int]:
    return cache.input, cache.output, cache.axis
