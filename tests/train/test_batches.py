"""Batches depend on (seed, task, step) alone, and an epoch counts every example once."""

import collections
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from train.run import batches
from train.streams import Examples

from .conftest import make_stream


@hypothesis.given(
    sizes=strategies.lists(strategies.integers(1, 20), min_size=1, max_size=3).map(tuple),
    batch_size=strategies.integers(1, 12),
    epoch=strategies.integers(0, 3),
)
def test_an_epoch_counts_every_example_once(sizes, batch_size, epoch):
    examples = sum(sizes)
    steps = math.ceil(examples / batch_size)
    counted = collections.Counter()
    for step in range(epoch * steps, (epoch + 1) * steps):
        rows, weight = batches.positions(7, 1, step, sizes=sizes, batch_size=batch_size)
        assert len(rows) == batch_size
        for row, counts in zip(rows, weight, strict=True):
            counted[int(row)] += float(counts)
    assert counted == dict.fromkeys(range(examples), 1.0)


def test_orders_differ_by_seed_task_and_epoch():
    def order(seed, task, epoch):
        steps = range(5 * epoch, 5 * epoch + 5)
        taken = [batches.positions(seed, task, s, sizes=(20,), batch_size=4)[0] for s in steps]
        return tuple(np.concatenate(taken))

    orders = {order(seed, task, epoch) for seed in (0, 1) for task in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 8


def test_a_step_needs_no_history():
    whole = batches.take({2: _examples()}, (3, 4), 1, range(10), batch_size=4)
    alone = batches.take({2: _examples()}, (4,), 1, range(6, 7), batch_size=4)
    for mine, theirs in zip(alone, whole, strict=True):
        np.testing.assert_array_equal(mine[0, 0], theirs[6, 1])


def test_axes():
    batch = batches.take({2: _examples()}, (1, 2, 3), 0, range(5), batch_size=4)
    assert batch.x.shape == (5, 3, 4, 4, 4, 1)
    assert batch.y.shape == batch.weight.shape == batch.task.shape == (5, 3, 4)
    assert (batch.task == 2).all()
    assert (batch.x.dtype, batch.y.dtype) == (np.uint8, np.int32)


def test_blocks_cover_all_examples_once():
    examples = _examples()
    blocks = [batches.block(examples, 2, start, 8) for start in range(0, len(examples), 8)]
    labels = np.concatenate([block.y[block.weight == 1] for block in blocks])
    np.testing.assert_array_equal(labels, examples.y)


def test_several_tasks_at_once_keep_images_labels_and_tasks_together():
    parts = {number: task.train for number, task in enumerate(make_stream().tasks)}
    batch = batches.take(parts, (1,), 0, range(20), batch_size=4)  # 3 * 26 examples
    assert batch.weight.sum() == 78
    found = {(image.tobytes(), int(label), int(task)) for image, label, task in _rows(batch)}
    expected = {
        (image.tobytes(), int(label), number)
        for number, part in parts.items()
        for image, label in zip(part.x, part.y, strict=True)
    }
    assert found == expected


def test_several_tasks_in_turn():
    parts = {number: task.train for number, task in enumerate(make_stream().tasks)}

    def epoch(number, in_turn):  # 78 examples in batches of 6
        steps = range(13 * number, 13 * number + 13)
        batch = batches.take(parts, (1,), 0, steps, batch_size=6, in_turn=in_turn)
        return batch.task.ravel(), [image.tobytes() for image, _, _ in _rows(batch)]

    (task, first), (task_again, second) = epoch(0, True), epoch(1, True)
    np.testing.assert_array_equal(task, np.repeat([0, 1, 2], 26))
    np.testing.assert_array_equal(task, task_again)
    for part in range(3):
        own = slice(26 * part, 26 * part + 26)
        stored = {image.tobytes() for image in parts[part].x}
        assert set(first[own]) == set(second[own]) == stored
        assert first[own] != second[own]
    assert (np.diff(epoch(0, False)[0]) < 0).any()


def _rows(batch):
    image, label, task = (x.reshape(-1, *x.shape[3:]) for x in batch[:3])
    return zip(image, label, task, strict=True)


@pytest.mark.parametrize("count", [26, 5, 1])
def test_revisited_examples_are_different_and_weigh_one_together(count):
    found = [
        batches.revisited(_examples(), (1, 2), 2, count, start, batch_size=4)
        for start in range(0, count, 4)
    ]
    weight = np.concatenate([batch.weight for batch in found], axis=1)
    np.testing.assert_allclose(weight.sum(axis=1), 1, rtol=1e-6)
    for seed in range(2):
        images = np.concatenate([batch.x[seed] for batch in found])[weight[seed] > 0]
        assert len({image.tobytes() for image in images}) == count


def _examples() -> Examples:
    return make_stream().tasks[0].train


def test_a_slice_of_a_batch_is_what_the_whole_batch_has_there():
    parts, part = {2: _examples()}, slice(1, 3)
    whole = batches.take(parts, (1, 2), 2, range(1, 3), batch_size=4)
    some = batches.take(parts, (1, 2), 2, range(1, 3), batch_size=4, of_batch=part)
    for all_of_it, found in zip(whole, some, strict=True):
        np.testing.assert_array_equal(found, all_of_it[:, :, part])
    whole = batches.revisited(_examples(), (1, 2), 2, 6, 4, batch_size=4)
    some = batches.revisited(_examples(), (1, 2), 2, 6, 4, batch_size=4, of_batch=part)
    for all_of_it, found in zip(whole, some, strict=True):
        np.testing.assert_array_equal(found, all_of_it[:, part])
    whole = batches.block(_examples(), 2, 3, 4)
    for all_of_it, found in zip(whole, batches.block(_examples(), 2, 3, 4, part), strict=True):
        np.testing.assert_array_equal(found, all_of_it[part])
