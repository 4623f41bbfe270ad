"""The command line: `subtune COMMAND ...`. One file per command; only this room prints."""

from subtune.cli.main import main

__all__ = ["main"]
