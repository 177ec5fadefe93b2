"""Random search over the settings of `train`: trials on one machine or many; which worker runs a trial does not change it.

space.py     what is searched; the parameters of a trial are a function of (seed, trial, setting)
chance.py    the figure that trials are compared by, and what a diverged trial scores
locks.py     who is alive, asked of the operating system
store.py     where trials are kept: a journal file, or PostgreSQL
trials.py    claimed, finished, given back, and claimed again after a worker died
worker.py    trains one trial after another;  search.py  the command: prepares, starts workers, watches, reports
report.py    tables, tune.json, the picture
"""
