"""Operators that no subgraph has (sorting, running sums, scattering), in `main` as kernels of our own.

TVM's own loops for them take from ten to a hundred times as long. What stays is what no kernel here does.
"""

from subtune.backends.cuda.operators.lowering import own_operators

__all__ = ["own_operators"]
