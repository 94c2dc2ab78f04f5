"""Runs, one or many: `fit`, seeds, processes, hosts, the search of a grid, the sweep of a list.

Imports `run` and what lies below it. It knows no presets: whoever launches says what they are, and
in which directories the runs are kept.
"""
