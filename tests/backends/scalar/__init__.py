"""A third kind of device, as an example: one scalar thread of the host, whose kernels are plain loops."""
