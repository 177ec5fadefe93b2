"""The lab: data -> a trained, saved, usable model (train), and its use (evaluate, predict, generate)."""
