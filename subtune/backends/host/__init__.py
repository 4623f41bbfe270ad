"""Code of the host: object files linked into shared libraries, for this machine or another."""
