"""One artifact for many shapes: what a model's instances have in common, and what depends on their symbols."""
