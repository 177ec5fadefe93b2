"""`make campaign`: what a run survives, tried many times at random. Not part of the tests; docs/reliability.md says what it shows."""
