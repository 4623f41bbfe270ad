"""In the runner process: kernels checked and timed on this machine."""
