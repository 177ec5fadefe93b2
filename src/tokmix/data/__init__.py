"""Where batches come from: text and tables, and synthetic tasks."""
