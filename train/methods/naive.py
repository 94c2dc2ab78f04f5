"""Naive: every batch as it comes, nothing against forgetting but the optimizer."""

from train.methods.base import Method


class Naive(Method):
    """What the protocol does by default."""
