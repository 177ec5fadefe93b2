"""What `tokmix demo` shows.

stdlib.py    the lab from end to end, on the one text that every machine with Python has: its standard library
`--what shapes` is in reproduce/toy/demo.py, in a checkout.
"""
