"""One schedule family of the CPU per folder: what it accepts, its candidates, its schedule."""
