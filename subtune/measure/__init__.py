"""Builds, checks and times candidates in isolated worker processes."""
