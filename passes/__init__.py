"""Relax -> Relax, and the analyses that the rewrites need.

In: an imported `IRModule`. Out: the same model normalised (`normalize`), partitioned into subgraphs (`partition`, an
analysis), with one PrimFunc per subgraph (`outline`), its distinct workloads (`extract`), and its winners in their
place (`splice`).
Import each from the module of its name: `from subtune.passes.partition import partition`.
"""
