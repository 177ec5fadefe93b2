"""The second edition: fair baselines, rates searched for every system, enough seeds, text that is read once."""
