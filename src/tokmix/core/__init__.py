"""The contract of a mixer and the model around it. Needs torch alone."""
