"""One run: its config, its compiled functions, the loop, checkpoints, records, and its result.

Imports `methods`, `models`, `optimizers` and `streams`, and what lies below them.
"""
