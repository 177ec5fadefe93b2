"""HyperMLP and HyperGLU (Lu & Yang 2026): what is run of it."""
