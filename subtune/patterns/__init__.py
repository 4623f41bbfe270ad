"""A PrimFunc in, the pattern of its computation out: contraction, window, row-wise, chain, …."""
