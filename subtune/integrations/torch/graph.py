"""One graph of `torch.compile`'s: compiled for the weights and shapes of a call, and found again for the next."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from subtune import driver
from subtune.artifact import Artifact
from subtune.core.errors import SubtuneError
from subtune.integrations.torch.bound import exported_graph
from subtune.integrations.torch.cache import Cache, key_of
from subtune.integrations.torch.export import said
from subtune.integrations.torch.layout import laid_out, result_strides, varies
from subtune.integrations.torch.runner import Runner, runner_of
from subtune.integrations.torch.settings import Settings
from subtune.integrations.torch.signature import Computed, Passed, Signature

_MOST = 8
"""Times that one graph is compiled, for other shapes or other weights, as often as PyTorch does it by itself."""

_version = operator.attrgetter("_version")


@dataclass(frozen=True, slots=True, eq=False)
class _Frozen:
    """A graph compiled for certain weights, at certain shapes.

    Attributes:
        weights: those of the arguments that it has as constants, kept so that their memory cannot become others'.
        addresses, versions: where they were, and how often they had been written to.
        names: of the artifact's inputs, by their place among the arguments.
    """

    weights: tuple[torch.Tensor, ...]
    addresses: tuple[int, ...]
    versions: tuple[int, ...]
    run: Runner
    signature: Signature
    names: tuple[tuple[int, str], ...]

    def is_of(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether these are the weights, with the values that they had."""
        is_same = all(map(operator.is_, weights, self.weights))
        return (is_same or _layouts(weights) == _layouts(self.weights)) and _state(weights) == (
            self.addresses, self.versions
        )  # fmt: skip


@final
class Graph:
    """A function of the graph's arguments, called as the graph is.

    Args:
        module: of ATen operators, changing none of its arguments.
        inputs: its arguments as PyTorch traced it: fake tensors, and numbers.
        weights: the places of those that are a module's parameters and buffers, constants as long as nobody writes.
        fell_back: told once why PyTorch runs it.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        inputs: Sequence[Any],
        weights: frozenset[int],
        settings: Settings,
        fell_back: Callable[[str], None],
    ) -> None:
        self._module, self._settings, self._fell_back = module, settings, fell_back
        self._weights = tuple(place for place in sorted(weights) if isinstance(inputs[place], torch.Tensor))
        self._given = tuple(place for place in range(len(inputs)) if place not in self._weights)
        self._varies = any(varies(inputs[place]) for place in self._given)
        self._strides = result_strides(module)
        self._compiled: dict[Any, list[_Frozen]] = {}
        self._count = 0
        self._is_eager = False
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        if self._is_eager:
            return self._module(*args)
        weights = tuple(args[place] for place in self._weights)
        shapes = tuple(_shape(args[place]) for place in self._given) if self._varies else ()
        frozen = self._known(shapes, weights)
        if frozen is None:
            with self._lock:  # threads that call for the first time wait for the one that compiles
                frozen = self._known(shapes, weights) or self._freeze(args, weights, shapes)
        return self._module(*args) if frozen is None else self._run(frozen, args)

    def _known(self, shapes: Any, weights: tuple[torch.Tensor, ...]) -> _Frozen | None:
        return next((one for one in self._compiled.get(shapes, ()) if one.is_of(weights)), None)

    def _run(self, frozen: _Frozen, args: Sequence[Any]) -> list[Any]:
        computed = frozen.run({name: args[place] for place, name in frozen.names})
        found: list[Any] = []
        for one, stride in zip(frozen.signature.results, self._strides, strict=True):
            if isinstance(one, Computed):
                found.append(laid_out(computed[one.name], stride))
            else:
                found.append(args[one.argument] if isinstance(one, Passed) else one.value)
        return found

    def _freeze(self, args: Sequence[Any], weights: tuple[torch.Tensor, ...], shapes: Any) -> _Frozen | None:
        """Compile for these arguments; None, and PyTorch from now on, where that is refused."""
        if self._is_eager:
            return None
        if self._count >= _MOST:
            self._give_up(f"it came with other weights or shapes {_MOST} times; each would be tuned anew")
            return None
        self._count += 1
        try:
            with _disable_current_modes():  # PyTorch looks at what operators do in a graph's first run
                made = self._made(args, weights)
        except SubtuneError as e:
            self._give_up(str(e))
            return None
        except Exception as e:  # of PyTorch's export, whatever it is
            self._give_up(f"it cannot be exported: {said(e)}")
            return None
        # of the same tensors with other values, nobody will ask for the old ones
        others = self._compiled.get(shapes, [])
        kept = [one for one in others if not all(map(operator.is_, one.weights, weights))]
        self._compiled[shapes] = [*kept, made]
        return made

    def _give_up(self, reason: str) -> None:
        self._is_eager = True
        self._compiled.clear()
        self._fell_back(reason)

    def _made(self, args: Sequence[Any], weights: tuple[torch.Tensor, ...]) -> _Frozen:
        given = [args[place] for place in self._given]
        target = _target([*given, *weights])
        if None in self._strides:
            raise SubtuneError("a result has a layout that a compiled model does not make; compile with dynamic=False")
        options = self._settings.compile_options(target, torch.get_num_threads())
        cache = Cache.of(self._settings)
        key = key_of(self._module, given, weights, options) if cache else ""
        found = cache.load(key, options["threads"]) if cache else None
        if found is None:
            places = (self._given, self._weights)
            with torch.inference_mode(False), torch.no_grad():
                exported = exported_graph(self._module, given, weights, places)

            def build(output: Path | None) -> Artifact:
                return driver.compile(exported.model, output=output, **options)

            found = cache.store(key, build, exported.signature) if cache else (build(None), exported.signature)
        artifact, signature = found
        pairs = zip(self._given, signature.arguments, strict=True)
        names = tuple((place, one.name) for place, one in pairs if isinstance(one, Computed))
        return _Frozen(weights, *_state(weights), runner_of(artifact), signature, names)


def _target(values: Sequence[Any]) -> str:
    """Where the tensors are. Raises SubtuneError: at several places."""
    kinds = sorted({value.device.type for value in values if isinstance(value, torch.Tensor)})
    if len(kinds) > 1 or not {"cpu", "cuda"}.issuperset(kinds):
        raise SubtuneError(f"its tensors are on {' and '.join(kinds)}, and a compiled model is all on cpu or cuda")
    return "cuda" if kinds == ["cuda"] else "auto"


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else value


def _layouts(weights: Sequence[torch.Tensor]) -> list[tuple[Any, ...]]:
    return [(one.shape, one.stride(), one.dtype) for one in weights]


def _state(weights: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the weights are, and how often each was written to; of inference tensors nobody counts that."""
    addresses = tuple(map(torch.Tensor.data_ptr, weights))
    try:
        return addresses, tuple(map(_version, weights))
    except RuntimeError:
        return addresses, tuple(0 if one.is_inference() else one._version for one in weights)
