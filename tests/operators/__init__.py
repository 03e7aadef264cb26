"""Every operator of PyTorch's own table of operators, seen at API level.

`python -m tests.operators` examines all of them, or those that are named.
"""
