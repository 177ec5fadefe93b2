"""Hierarchical Shift Mixing (Forchheimer 2026, arXiv 2601.22852): its claims, in our reading, tested. Its numbers were not at hand."""
