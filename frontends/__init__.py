"""Models on disk -> Relax: the only room that knows file formats."""
