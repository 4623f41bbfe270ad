"""Operators that no subgraph has (TopK, sorting), as functions of our own: TVM's loops take several times as long.

Nothing is tuned. Elements are whole numbers of 64 bits, the key above and the place below: no two are equal, and one
comparison decides both.
"""

from subtune.backends.cpu.operators.lowering import own_operators

__all__ = ["own_operators"]
