"""Helpers over TIR that know nothing of tuning: walking, substituting, padding, packing, tiling."""
