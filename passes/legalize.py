"""Our own legalisations, where TVM's refuse, or make TIR that schedules or computes badly."""

from __future__ import annotations

LEGALIZATIONS = {}
