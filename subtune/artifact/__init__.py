"""A compiled model: written, loaded, run."""

from subtune.artifact.model import Artifact, load

__all__ = ["Artifact", "load"]
