"""How a module's arguments and results lie in its compiled form, which has tensors by name and nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from subtune.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Computed:
    """A tensor that the compiled model takes, or gives, under this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Passed:
    """A result that is the argument of this number, among all leaves: the caller's own object comes back."""

    argument: int


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """What is the same in every call: None, a number or a text that the model was exported for; a weight it returns."""

    value: Any

    def accepts(self, given: Any) -> bool:
        if given is self.value:
            return True
        is_plain = not isinstance(given, torch.Tensor) and type(given) is type(self.value)
        return is_plain and bool(given == self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """The structure of a call and of its result.

    Attributes:
        arguments: what each leaf of `(args, kwargs)` is, in PyTorch's order of leaves.
        results: what each leaf of the result is.
        in_spec, out_spec: their structures, of `torch.utils._pytree`.
        names: of the module's parameters, in their order; () where nobody knows.
    """

    arguments: tuple[Computed | Fixed, ...]
    results: tuple[Computed | Passed | Fixed, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    names: tuple[str, ...] = ()

    @property
    def outputs(self) -> list[str]:
        """The names of the compiled model's outputs, each once."""
        return list(dict.fromkeys(one.name for one in self.results if isinstance(one, Computed)))

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call. Raises InputError: its structure, or what is fixed, is not as it was exported."""
        args, kwargs = self._arranged(tuple(args), dict(kwargs))
        try:
            leaves = self.in_spec.flatten_up_to((args, kwargs))
        except ValueError as e:
            raise InputError(f"the arguments have another structure than the example inputs: {e}") from e
        for number, (leaf, argument) in enumerate(zip(leaves, self.arguments, strict=True)):
            if isinstance(argument, Fixed):
                if not argument.accepts(leaf):
                    raise InputError(
                        f"{self._called(number)} is {_shown(leaf)}, and the model was compiled for "
                        f"{_shown(argument.value)}: compile it once more with such example inputs"
                    )
            elif not isinstance(leaf, torch.Tensor):
                raise InputError(f"{self._called(number)} is {_shown(leaf)}; give a tensor, as in the example inputs")
        return leaves

    def tensors(self, leaves: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Those of the leaves that the compiled model takes, by their names there."""
        pairs = zip(self.arguments, leaves, strict=True)
        return {argument.name: leaf for argument, leaf in pairs if isinstance(argument, Computed)}

    def call(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that have these leaves."""
        args, kwargs = pytree.tree_unflatten(leaves, self.in_spec)
        return args, kwargs

    def filled(self, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
        """The leaves of a call with these tensors: the reverse of `tensors`."""
        return [tensors[one.name] if isinstance(one, Computed) else one.value for one in self.arguments]

    def result(self, leaves: Sequence[Any], computed: Mapping[str, torch.Tensor]) -> Any:
        """What the module returns: `computed` by the names of the compiled model's outputs."""
        found: list[Any] = []
        for one in self.results:
            if isinstance(one, Computed):
                found.append(computed[one.name])
            else:
                found.append(leaves[one.argument] if isinstance(one, Passed) else one.value)
        return pytree.tree_unflatten(found, self.out_spec)

    def computed(self, result: Any) -> dict[str, torch.Tensor]:
        """The tensors in a result of the module itself, by the names of the compiled model's outputs."""
        leaves = pytree.tree_leaves(result)
        return {one.name: leaf for one, leaf in zip(self.results, leaves, strict=True) if isinstance(one, Computed)}

    def _arranged(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call in the form of the example's, as Python would bind it: by position or by name is the same."""
        count, keys = self.in_spec.child(0).num_children, self.in_spec.child(1).context
        if len(args) == count and kwargs.keys() == set(keys):
            return args, kwargs
        if not self.names or len(args) > len(self.names):
            return args, kwargs  # `leaves` says what is wrong
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        if len(given) < len(args) + len(kwargs):
            raise InputError("an argument is given by its position and by its name: leave one of them out")
        given = {**dict.fromkeys(self._optional()), **given}
        by_place = tuple(given.pop(name) for name in self.names[:count] if name in given)
        return by_place, {name: value for name, value in given.items() if value is not None or name in keys}

    def _optional(self) -> list[str]:
        """The names of arguments for which the example had None."""
        found, before = [], 0
        keywords = self.in_spec.child(1)
        named = (*zip(self.names, self.in_spec.child(0).children(), strict=False),
                 *zip(keywords.context, keywords.children(), strict=True))  # fmt: skip
        for name, spec in named:
            one = self.arguments[before] if spec.is_leaf() else None
            if isinstance(one, Fixed) and one.value is None:
                found.append(name)
            before += spec.num_leaves
        return found

    def _called(self, number: int) -> str:
        """The argument that a leaf belongs to, as a user knows it."""
        for place, spec in enumerate(self.in_spec.child(0).children()):
            if number < spec.num_leaves:
                return f"the argument {self.names[place]}" if place < len(self.names) else f"the argument {place}"
            number -= spec.num_leaves
        for name, spec in zip(self.in_spec.child(1).context, self.in_spec.child(1).children(), strict=True):
            if number < spec.num_leaves:
                return f"the argument {name}"
            number -= spec.num_leaves
        raise AssertionError("a leaf of no argument")


def output_names(spec: pytree.TreeSpec, taken: Collection[str]) -> list[str]:
    """A name for each leaf of a result, by its place there: `logits`, `past_key_values.0.1`; none in `taken`.

    >>> output_names(pytree.tree_structure({"logits": 0, "states": (0, 0)}), taken=())
    ['logits', 'states.0', 'states.1']
    """
    tensors = [torch.zeros(1, 1, 1, 1)] * spec.num_leaves  # classes of users' look at what they are made of
    try:
        paths = [path for path, _ in pytree.tree_flatten_with_path(pytree.tree_unflatten(tensors, spec))[0]]
    except Exception:  # or do not name their fields
        paths = []
    if len(paths) != len(tensors):
        paths = [(pytree.SequenceKey(number),) for number in range(len(tensors))]
    found: list[str] = []
    for path in paths:
        text = ".".join(re.sub(r"\W+", "_", _key(one)) for one in path) or "output"
        name = text if not text[0].isdigit() else f"output.{text}"
        while name in taken or name in found:
            name += "_"
        found.append(name)
    return found


def _key(entry: Any) -> str:
    """One step of a path: an index, the key of a dictionary, the name of a field."""
    for field in ("idx", "key", "name"):
        if hasattr(entry, field):
            return str(getattr(entry, field))
    return "value"


def _shown(value: Any) -> str:
    return f"a tensor of {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
