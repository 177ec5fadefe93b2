"""`tokmix compare`: several stacks on one task, the same rows, seeds and parameters for all, with tests and what each cost.

plan -> pool of workers -> results on disk -> summary -> table, compare.json, pictures
"""
