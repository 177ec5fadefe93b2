"""Benchmarks, outside the wheel: `speed` is `tokmix bench`, the other files are scripts of single measurements."""
