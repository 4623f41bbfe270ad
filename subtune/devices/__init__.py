"""The hardware models, CPU and CUDA: read from the machine, or from published figures."""
