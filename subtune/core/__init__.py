"""The data types that all rooms share: workloads, candidates, kernels, measurements, records, graphs, errors."""
