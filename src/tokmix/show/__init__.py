"""Plots and progress bars."""
