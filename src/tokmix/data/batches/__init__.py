"""Token files -> batches."""
