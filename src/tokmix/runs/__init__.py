"""Files, locks and worker processes: what a run needs to survive a kill."""
