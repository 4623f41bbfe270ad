"""From scheduled PrimFuncs to LLVM's input."""
