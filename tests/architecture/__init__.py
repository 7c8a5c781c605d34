"""Rules about the code itself.

Each rule is a function in `rules.py`, `calls.py` or `texts.py` that takes files and gives back
complaints; its test runs it on this tree and on a planted mistake.
"""
