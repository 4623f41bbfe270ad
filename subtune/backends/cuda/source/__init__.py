"""CUDA source text that several families write."""
