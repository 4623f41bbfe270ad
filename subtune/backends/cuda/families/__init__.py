"""One schedule family of CUDA per folder: what it accepts, its candidates, its schedule."""
