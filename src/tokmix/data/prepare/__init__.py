"""Rows and text -> token files."""
