"""Algorithms that families of several backends schedule: their tables, and to which patterns they apply."""
