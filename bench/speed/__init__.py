"""Measurements on this machine: `tokmix bench`. Other machines differ, so compare numbers of one run with each other.

settings.py   what can be asked, and the sizes it means     session.py   one run: clock, ceilings, rows, the JSON file
clock.py      time and memory of a call                     rule.py      the rule against float64, shared with the tests
cases.py      the ops; rivals.py  what they are set beside   ops.py, layers.py, decode.py, decode_models.py, train.py, train_loop.py
user.py      what commands take from start to end, user_child.py one such process
table.py, draw.py  what is shown                            start.py     what `import tokmix` costs
"""

from bench.speed.start import import_time

__all__ = ["import_time"]
