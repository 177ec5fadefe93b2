"""`tokmix compare`: several stacks on one task, with the same rows, seeds and number of parameters, tests and costs.

plan -> pool of workers -> results on disk -> summary -> table, compare.json, pictures
"""
