"""The contract of token mixers as code: what every mixer must hold, in every mode it offers and with every option it declares.

cases.py                          a mixer with its options, found from the types of its constructor
rules.py                          what a rule is, and errors with numbers
layout.py, stepping.py, numbers.py  the rules
run.py                            all of them on one mixer: `tokmix check my_mixer.py`

The tests of the built-in mixers call the same rules.
"""
