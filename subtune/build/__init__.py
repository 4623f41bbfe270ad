"""From scheduled PrimFuncs to machine code: lowering, compilers, linkers."""
