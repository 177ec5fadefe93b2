"""A cheap encoder that learns from a larger one: its hidden states (tokens.py) or its sentence embeddings (task.py)."""
