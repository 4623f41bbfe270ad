"""Device model and workload in, candidates out, best first: arithmetic only."""
