"""Torch's own databases of operators and modules, run compiled and compared with eager.

`calls` makes calls of the entries, `observation` notes what a caller sees of one, `verdict` compares compiled calls
with eager ones, `state` keeps what was found, `table` prints it. `python -m tests.opdb` runs everything.
"""
