"""What must hold between a domain of shapes and the tensors of a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from subtune.core.binding import unbound
from subtune.core.bounds import bounds
from subtune.core.dims import Dim
from subtune.core.manifest import Manifest
from subtune.core.memory_plan import Base, View
from subtune.core.tensor_spec import TensorSpec


def domain_rule(manifest: Manifest) -> Iterator[str]:
    """Inputs say what every symbol is, and no tensor is larger than where all symbols are largest."""
    domain, specs = manifest.domain, (*manifest.inputs, *manifest.outputs)
    twice = [name for name, count in Counter(domain.names).items() if count > 1]
    if twice:
        yield f"the domain has two symbols of the name {twice[0]!r}"
        return
    for spec in specs:
        if unknown := [name for name in spec.symbols if name not in domain.names]:
            yield f"the domain does not say what {unknown[0]} of {spec} is"
            return
        for dim in spec.dims:
            low, high = bounds(dim, domain)
            if low < 0 or high != dim.at(domain.greatest):
                yield f"the dimension {dim} of {spec} is negative, or not largest where its symbols are"
                return
    if untold := unbound(manifest.inputs, domain):
        yield f"the shape of no input says what {untold[0]} is"


def caches_rule(manifest: Manifest) -> Iterator[str]:
    """A cache is an output that differs from its input along one axis, where its memory has room for the longest."""
    for cache in manifest.caches:
        if not (0 <= cache.input < len(manifest.inputs) and 0 <= cache.output < len(manifest.outputs)):
            yield f"a cache is input {cache.input} and output {cache.output}, and there are not so many"
            return
        given, made = manifest.inputs[cache.input], manifest.outputs[cache.output]
        sizes = zip(given.shape, made.shape, strict=False)
        is_one = given.dtype == made.dtype and len(given.shape) == len(made.shape) and 0 <= cache.axis < len(made.shape)
        if not is_one or any(a != b for axis, (a, b) in enumerate(sizes) if axis != cache.axis):
            yield f"output {made} is no input {given} with more rows along axis {cache.axis}"
        elif greatest(manifest, made).sizes[cache.axis] > cache.capacity:
            yield f"the cache {made} has room for {cache.capacity} rows"
        elif any(view.base is Base.INPUT and view.place == cache.input for view in manifest.memory.arguments):
            yield f"a kernel reads {given}, whose rows are in the memory of an output"
    for what in ("input", "output"):
        places = [getattr(cache, what) for cache in manifest.caches]
        if len(set(places)) < len(places):
            yield f"two caches are the same {what}"


def room(manifest: Manifest, place: int) -> TensorSpec:
    """What the memory of output number `place` has at the largest instance: of a cache, all that it has room for."""
    spec = greatest(manifest, manifest.outputs[place])
    for cache in manifest.caches:
        if cache.output == place:
            shape = (*spec.shape[: cache.axis], cache.capacity, *spec.shape[cache.axis + 1 :])
            return TensorSpec(spec.name, shape, spec.dtype)
    return spec


def fits_copy(manifest: Manifest, output: TensorSpec, view: View) -> bool:
    """Whether an output has as many elements as the array that it is a copy of, in every instance."""
    if view.base.is_fixed:
        return True
    owner = (manifest.inputs if view.base is Base.INPUT else manifest.outputs)[view.place]
    return prod(owner.dims, start=Dim.number(1)) == prod(output.dims, start=Dim.number(1))


def greatest(manifest: Manifest, spec: TensorSpec) -> TensorSpec:
    """The specification at the largest instance, which memory is laid out for."""
    return spec if spec.is_static else spec.at(manifest.domain.greatest)
