"""An artifact as what runs without subtune and without a compiler: a directory for C, C++ and Python, or a wheel."""

from subtune.deploy.export import Exported, export_standalone, export_wheel

__all__ = ["Exported", "export_standalone", "export_wheel"]
