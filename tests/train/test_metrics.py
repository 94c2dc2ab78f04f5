import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

from train.run import metrics

NAN = math.nan

# Task 0 is best after task 1 (0.9), not when it was learned: forgetting and -BWT differ.
THREE = np.array([[0.8, NAN, NAN], [0.9, 0.6, NAN], [0.5, 0.7, 0.4]])


def square_matrices() -> st.SearchStrategy[np.ndarray]:
    return st.integers(1, 8).flatmap(
        lambda tasks: arrays(np.float64, (tasks, tasks), elements=st.floats(0, 1))
    )


def lower(a: np.ndarray) -> np.ndarray:
    return np.where(np.tri(len(a), dtype=bool), a, NAN)


def dumb(a: np.ndarray) -> dict[str, list[float]]:
    """The four metrics by loops over the paper's sums."""
    results = {name: [] for name in ("average", "forgetting", "learning", "backward")}
    for t in range(len(a)):
        average = learning = forgotten = backward = 0.0
        for s in range(t + 1):
            average += a[t, s]
            learning += a[s, s]
        for s in range(t):
            best = -math.inf
            for u in range(s, t):
                best = max(best, a[u, s])
            forgotten += best - a[t, s]
            backward += a[t, s] - a[s, s]
        results["average"].append(average / (t + 1))
        results["learning"].append(learning / (t + 1))
        results["forgetting"].append(forgotten / t if t else NAN)
        results["backward"].append(backward / t if t else NAN)
    return results


def test_three_tasks_by_hand() -> None:
    np.testing.assert_allclose(metrics.average_accuracy(THREE), [0.8, 0.75, 1.6 / 3])
    np.testing.assert_allclose(metrics.forgetting(THREE), [NAN, -0.1, (0.4 - 0.1) / 2])
    np.testing.assert_allclose(metrics.learning_accuracy(THREE), [0.8, 0.7, 0.6])
    np.testing.assert_allclose(metrics.backward_transfer(THREE), [NAN, 0.1, (-0.3 + 0.1) / 2])


@given(square_matrices())
def test_equal_to_loops(a: np.ndarray) -> None:
    a = lower(a)
    expected = dumb(a)
    close = dict(rtol=0, atol=1e-12)
    np.testing.assert_allclose(metrics.average_accuracy(a), expected["average"], **close)
    np.testing.assert_allclose(metrics.forgetting(a), expected["forgetting"], **close)
    np.testing.assert_allclose(metrics.learning_accuracy(a), expected["learning"], **close)
    np.testing.assert_allclose(metrics.backward_transfer(a), expected["backward"], **close)


@given(square_matrices())
def test_paper_relations(a: np.ndarray) -> None:
    a = lower(a)
    average, learned = metrics.average_accuracy(a), metrics.learning_accuracy(a)
    backward, forgotten = metrics.backward_transfer(a)[1:], metrics.forgetting(a)[1:]
    t = np.arange(1, len(a))
    # A_t - L_t has the same sum as BWT_t, over t + 1 tasks instead of t.
    np.testing.assert_allclose((average - learned)[1:] * (t + 1), backward * t, atol=1e-12)
    # The best accuracy before t is at least that when the task was learned.
    assert np.all(forgotten >= -backward - 1e-12)


@given(square_matrices())
def test_without_forgetting_all_is_zero(a: np.ndarray) -> None:
    """Every task keeps the accuracy that it was learned with."""
    kept = lower(np.tile(np.diagonal(a), (len(a), 1)))
    assert np.all(metrics.forgetting(kept)[1:] == 0)
    assert np.all(metrics.backward_transfer(kept)[1:] == 0)
    np.testing.assert_allclose(metrics.average_accuracy(kept), metrics.learning_accuracy(kept))


def test_unfinished_tasks_are_nan() -> None:
    a = THREE.copy()
    a[2, 1:] = NAN
    np.testing.assert_allclose(metrics.average_accuracy(a), [0.8, 0.75, NAN])
    np.testing.assert_allclose(metrics.forgetting(a), [NAN, -0.1, NAN])
    np.testing.assert_allclose(metrics.learning_accuracy(a), [0.8, 0.7, NAN])
    np.testing.assert_allclose(metrics.backward_transfer(a), [NAN, 0.1, NAN])


def test_summary_is_at_the_last_finished_task() -> None:
    whole = metrics.summary(THREE)
    assert whole.tasks_finished == 3
    assert whole.accuracy == pytest.approx(1.6 / 3)
    assert whole.forgetting == pytest.approx(0.15)
    assert whole.learning_accuracy == pytest.approx(0.6)
    assert whole.backward_transfer == pytest.approx(-0.1)

    partial = THREE.copy()
    partial[2, 1:] = NAN
    assert metrics.summary(partial) == metrics.summary(THREE[:2, :2])


def test_summary_of_one_task() -> None:
    one = metrics.summary([[0.75]])
    assert (one.accuracy, one.learning_accuracy, one.tasks_finished) == (0.75, 0.75, 1)
    assert math.isnan(one.forgetting)
    assert math.isnan(one.backward_transfer)


def test_summary_of_nothing() -> None:
    nothing = metrics.summary(np.full((2, 2), NAN))
    assert nothing.tasks_finished == 0
    assert math.isnan(nothing.accuracy)


def test_measured_only_at_the_end() -> None:
    """Accuracy needs only the last row; the other metrics need the history."""
    a = np.full((3, 3), NAN)
    a[2] = [0.2, 0.4, 0.6]
    end = metrics.summary(a)
    assert (end.accuracy, end.tasks_finished) == (pytest.approx(0.4), 3)
    assert math.isnan(end.forgetting)
    assert math.isnan(end.learning_accuracy)


def test_input_is_not_changed() -> None:
    a = THREE.copy()
    metrics.summary(a)
    np.testing.assert_array_equal(a, THREE)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 2)])
def test_not_square(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be \\[tasks, tasks\\]"):
        metrics.average_accuracy(np.zeros(shape))


def test_over_seeds() -> None:
    mean, std = metrics.over_seeds([0.5, 0.7, 0.9])
    assert mean == pytest.approx(0.7)
    assert std == pytest.approx(math.sqrt(2 * 0.04 / 3))
    mean, std = metrics.over_seeds([[0.5, 0.7]])
    np.testing.assert_array_equal(mean, [0.5, 0.7])
    np.testing.assert_array_equal(std, [0, 0])
