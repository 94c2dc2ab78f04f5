"""What a run remembers: accuracy, forgetting, learning accuracy and backward transfer.

Every function takes the matrix ``a`` of a run: ``a[t, s]`` is the test accuracy on task ``s`` after
task ``t`` was learned, NaN where it was not measured. The definitions are those of the TAG paper
(Malviya et al., 2022, appendix), with tasks counted from zero.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Summary:
    """The metrics after the last finished task; NaN where too few tasks are finished."""

    accuracy: float
    forgetting: float
    learning_accuracy: float
    backward_transfer: float
    tasks_finished: int


def average_accuracy(a: ArrayLike) -> NDArray[np.float64]:
    """A_t: the mean accuracy over the tasks learned so far, NaN where one was not measured."""
    a = _square(a)
    return np.array([a[t, : t + 1].mean() for t in range(len(a))])


def forgetting(a: ArrayLike) -> NDArray[np.float64]:
    """F_t: how far the earlier tasks have fallen from their best, on average; NaN for t = 0.

    The best is over all measurements before task t, so that F_t is negative where learning task t
    improved the earlier ones.
    """
    a = _square(a)
    # fmax ignores NaN as nanmax does, but is silent where a task was never measured.
    best = np.fmax.accumulate(a, axis=0)
    return np.array([np.nan, *((best[t - 1] - a[t])[:t].mean() for t in range(1, len(a)))])


def learning_accuracy(a: ArrayLike) -> NDArray[np.float64]:
    """L_t: the mean accuracy that each task had just after it was learned."""
    learned = np.diagonal(_square(a))
    return np.cumsum(learned) / np.arange(1, len(learned) + 1)


def backward_transfer(a: ArrayLike) -> NDArray[np.float64]:
    """BWT_t: what learning later tasks added to the earlier ones, on average; NaN for t = 0."""
    a = _square(a)
    change = a - np.diagonal(a)
    return np.array([np.nan, *(change[t, :t].mean() for t in range(1, len(a)))])


def summary(a: ArrayLike) -> Summary:
    """All metrics after the last finished task: the last whose row is measured up to itself."""
    finished = np.flatnonzero(~np.isnan(average_accuracy(a)))
    if not finished.size:
        return Summary(np.nan, np.nan, np.nan, np.nan, 0)
    curves = average_accuracy, forgetting, learning_accuracy, backward_transfer
    last = int(finished[-1])
    return Summary(*(float(curve(a)[last]) for curve in curves), tasks_finished=last + 1)


def over_seeds(values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the standard deviation (ddof = 0) over the first axis, one row for each seed.

    Where one seed has no value neither has the mean: a mean over fewer seeds is another quantity.
    """
    values = np.asarray(values, np.float64)
    return values.mean(axis=0), values.std(axis=0)


def _square(a: ArrayLike) -> NDArray[np.float64]:
    a = np.asarray(a, np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(f"the accuracy matrix must be [tasks, tasks], not {list(a.shape)}")
    return a
