"""Relax -> Relax, and the analyses that the rewrites need."""
