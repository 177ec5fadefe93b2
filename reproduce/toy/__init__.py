"""The toy task of shapes (Mai et al. 2023, section 4.7), the example of what a token mixer is for.

data.py       the sequences                  compare.py    `tokmix compare ... --data shapes`
model.py      a small model, its training    demo.py       `tokmix demo --what shapes`
convolve/     its convolutions on a GPU      pictures.py   who reads whom
"""
