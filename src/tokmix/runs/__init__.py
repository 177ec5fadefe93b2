"""Files, locks and worker processes: so that a run survives a kill."""
