"""Multitask: the data of all tasks at once, the upper bound of learning them one after another."""

from train.methods.base import Method


class Multitask(Method):
    """One task for the optimizer; every example still answers among its own task's classes."""

    joint = True
