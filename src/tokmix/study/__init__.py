"""Many runs at once: search, comparison, cost and explanation."""
