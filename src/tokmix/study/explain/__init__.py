"""Which tokens a model reads for which output."""
