"""The cost of a stack by its formulas, and the cost of runs on disk.

stacks.py   FLOPs by layer and length;  counter.py  the same by torch's operation counter
paper.py    the HyperMixer paper's printed and corrected formulas;  crossing.py  where one cost falls below another
runs.py     Cost(R) = E · D · H of run, model, tune and compare folders
show.py     tables and a picture of them
"""
