"""One schedule family per file: PrimFunc and candidate in, schedule or the reason why not out."""
