"""Every error a user can meet, in one tree. Each message is one sentence: what, where, what to do."""

from __future__ import annotations


class SubtuneError(Exception):
    """Base of all errors that the command line reports as one line with exit code 2."""


class ModelError(SubtuneError):
    """The model file cannot be read, or is not a valid model."""


class UnsupportedOpsError(ModelError):
    """The model uses operators or attributes that the importer does not support; all are listed at once."""


class ShapeError(ModelError):
    """A shape is missing, symbolic without a value, or inconsistent."""


class TargetError(SubtuneError):
    """The target or the device description is unknown or does not fit this machine."""


class ClusterError(SubtuneError):
    """The cluster cannot be reached, or does not fit."""


class DevicesLost(ClusterError):
    """No device is left to measure on, or nobody to build; what was measured is in the database."""


class FleetError(SubtuneError):
    """The file of a fleet is not as it should be."""


class DatabaseError(SubtuneError):
    """The tuning database cannot be opened, read or written."""


class ArtifactError(SubtuneError):
    """An artifact directory is incomplete, damaged, or made for another machine or version."""


class InputError(SubtuneError):
    """The arrays given to `Artifact.run` do not fit the model's inputs."""


class VerificationError(SubtuneError):
    """The compiled model disagrees with the reference; no artifact is written."""
