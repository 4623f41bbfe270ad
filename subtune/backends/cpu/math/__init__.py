"""Vector arithmetic that TVM or LLVM would do element by element: exp, tanh, erf, bfloat16."""
