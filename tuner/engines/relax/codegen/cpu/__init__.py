"""Code of CPUs: LLVM, functions on vectors, instructions of dot products."""
