"""Relay's text and JSON -> Relax: `load.load_relay` is the pipeline."""
