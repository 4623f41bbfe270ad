"""What computes a loaded model: each backend has one of its own (`subtune.backends.*.program`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from subtune.core.trace import Slice


class Program(Protocol):
    """A model with its weights in place. An object is used by one thread at a time."""

    def run(self, arrays: list[np.ndarray]) -> None:
        """Compute every output of a model without symbols.

        Args:
            arrays: of all inputs and then of all outputs, as the manifest has them; contiguous and writeable, and no
                output lies where another array does.
        """

    def run_at(self, arrays: list[np.ndarray], symbols: tuple[int, ...]) -> None:
        """As `run`, of a model with symbols: one method with a default takes Python longer to call.

        Args:
            symbols: the values of the manifest's domain, in its order; the arrays have the shapes that they say.
        """

    def trace(self, arrays: list[np.ndarray], symbols: tuple[int, ...]) -> tuple[Slice, ...]:
        """As `run` or `run_at`, and when each of its kernels ran. It is a little slower: clocks are read in between.

        Raises:
            InputError: the artifact has no library for traces, and without one nobody can say that.
        """

    def __str__(self) -> str:
        """By what it runs: `2 threads`, `a CUDA graph`."""
