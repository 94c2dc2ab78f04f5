"""Multitask: the data of all tasks shuffled together, the upper bound of learning them in turn."""

from train.methods.base import Method


class Multitask(Method):
    """One task for the optimizer; every example still answers among its own task's classes."""

    joint = True
