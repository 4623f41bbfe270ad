"""subtune beside other frameworks: artifacts, the zoo, single operators, the processor's own limits.

A worker process runs `subtune.bench.worker`, which imports this package first: nothing is imported here, so that no
framework's memory figure holds what another one needs. Begin with `race` (interleaved timing) and `suite_cpu`.
"""
