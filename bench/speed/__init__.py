"""Measurements on this machine: `tokmix bench`. Other machines differ, so compare numbers of one run with each other.

settings.py   options and default sizes                     session.py   one run: clock, ceilings, rows, the JSON file
clock.py      time and memory of a call                     rule.py      the rule against float64, shared with the tests
cases.py      the ops; rivals.py  the rivals                 ops.py, layers.py, decode.py, decode_models.py, train.py, train_loop.py
user.py       whole commands from start to end, user_child.py one such process
table.py, draw.py  tables and plots                         start.py     the time of `import tokmix`
"""

from bench.speed.start import import_time

__all__ = ["import_time"]
