"""Triton kernels, one file an algorithm. Importing one of these files imports triton."""
