"""What a stack costs by its formulas, and what a run did cost.

stacks.py   FLOPs by layer and length;  counter.py  the same by torch's operation counter
paper.py    the HyperMixer paper's printed formulas beside corrected ones;  crossing.py  where one cost falls below another
runs.py     Cost(R) = E · D · H of run, model, tune and compare folders
show.py     tables and a picture of them
"""
