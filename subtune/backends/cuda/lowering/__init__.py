"""From scheduled PrimFuncs to CUDA source."""
