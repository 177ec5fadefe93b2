"""A cheap encoder that learns the sentence embeddings of a larger one (task.py)."""
