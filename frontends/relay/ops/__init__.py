"""Relay's operators in Relax, one file per family; `converters.CONVERTERS` has them all by name."""
