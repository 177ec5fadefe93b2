"""What `tokmix demo` shows.

stdlib.py    the lab from end to end, on the one text that every machine with Python has: its standard library
shapes.py    a toy task, and who attends to whom
"""
