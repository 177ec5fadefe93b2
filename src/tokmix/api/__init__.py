"""The Python API, of which the commands are thin shells: train, load, tune, compare, cost. `import tokmix` offers them all.

Nothing is printed unless verbose=True. Wrong input raises a ValueError of one line, as on the command line.
"""
