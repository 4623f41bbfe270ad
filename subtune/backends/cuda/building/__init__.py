"""CUDA source to machine code, in processes that see no GPU."""
