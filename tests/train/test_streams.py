"""The built-in streams and those of a user: tasks, heads, what is held out, what is refused.

On tiny data sets that are written here, and on real ones where they are beside the checkout.
"""

import dataclasses
import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

from train.errors import UserError
from train.streams import (
    STREAMS,
    Examples,
    Stream,
    Task,
    as_stream,
    cache,
    data_status,
    prepare,
    prepared,
)
from train.streams.named import NamedStream
from train.streams.stream import PARTS, spaced

from .tiny_data import TEST, TRAIN, damage, load_stream, write, write_all

SHARED = pathlib.Path(__file__).parents[3] / "shared"
REAL = (SHARED / "tfds", SHARED / "tfds_subset")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> dict[str, pathlib.Path]:
    """Small copies of all data sets, and a cache."""
    root = tmp_path_factory.mktemp("tiny")
    write_all(root / "data")
    return dict(data_dirs=[root / "data"], cache_dir=root / "cache")


# Tasks and heads.


FACTS = {  # Tasks, classes of a task, and what is fed for black.
    "split-cifar100": (20, 5, 0),
    "split-mini-imagenet": (20, 5, -1),
    "split-cub": (20, 10, -1),
    "five-datasets": (5, 10, 0),
    "rotated-mnist": (10, 10, 0),
    "permuted-mnist": (10, 10, 0),
    "rotated-digits": (10, 10, 0),
}


@pytest.mark.parametrize("name", STREAMS)
def test_every_stream(name, tiny):
    count, size, black = FACTS[name]
    stream = load_stream(name, **tiny)
    shape = STREAMS[name].image_shape
    assert (stream.name, len(stream.tasks), stream.num_outputs) == (name, count, count * size)
    assert (stream.input_shape, stream.input_dtype) == (shape, np.uint8)
    assert (stream.target_shape, stream.target_dtype) == ((), np.int32)
    assert (stream.offset, 255 * stream.scale + stream.offset) == pytest.approx((black, 1))
    assert len(stream.sources) == len(STREAMS[name].data_sets)
    assert len(stream.class_names) == stream.num_outputs
    for position, task in enumerate(stream.tasks):
        assert task.classes == range(position * size, (position + 1) * size)
        assert len(task.validation) == 0
        for part in (task.train, task.test):
            assert set(part.y) == set(task.classes)
            x, y = part.take(np.arange(3))
            assert (x.shape, x.dtype, y.shape, y.dtype) == ((3, *shape), np.uint8, (3,), np.int32)
            assert part.rows.dtype == np.int64
    assert len({task.name for task in stream.tasks}) == count
    stream.check("test")


def test_registry():
    assert list(STREAMS) == list(FACTS)
    assert all(name == stream.name for name, stream in STREAMS.items())
    assert {name for name in STREAMS if not STREAMS[name].extends} == {
        name for name in STREAMS if name.startswith("split")
    }
    assert {name for name in STREAMS if hasattr(STREAMS[name], "shared_head")} == {
        *("rotated-mnist", "permuted-mnist", "rotated-digits"),
    }


def test_more_tasks_extend_a_stream(tiny):
    for name, stream in STREAMS.items():
        short, long = (load_stream(name, num_tasks=count, **tiny) for count in (2, 5))
        extended = long.fingerprints()[:2] == short.fingerprints()
        assert extended == ("num_tasks" in stream.extends)


def test_class_names(mnist):
    plain = load_stream("rotated-mnist", num_tasks=2, **mnist)
    assert plain.class_names == 2 * [str(k) for k in range(10)]
    shared = load_stream("rotated-mnist", shared_head=True, **mnist)
    assert shared.class_names == [str(k) for k in range(10)]
    names = mnist["data_dirs"][0] / "mnist" / "1.0.0" / "label.labels.txt"
    names.write_text("\n".join("abcdefghij"))
    assert load_stream("rotated-mnist", **mnist).class_names == list("abcdefghij") * 10
    names.write_text("one too few")
    assert load_stream("rotated-mnist", **mnist).class_names[:2] == ["0", "1"]


def classes_of(examples: Examples) -> np.ndarray:
    """The class of each example, which is the grey level of its last pixel."""
    return examples.x[examples.rows][:, -1, -1, -1]


def test_natural_order(tiny):
    stream = load_stream("split-cifar100", **tiny)
    assert [task.name for task in stream.tasks][:2] == ["classes 0-4", "classes 5-9"]
    for task in stream.tasks:
        np.testing.assert_array_equal(classes_of(task.train), task.train.y)
        assert len(task.train) == 5 * TRAIN
        assert len(task.test) == 5 * TEST


def test_order_seed_renumbers_the_classes(tiny):
    first, again, other = (
        load_stream("split-cifar100", order_seed=seed, **tiny) for seed in (1, 1, 2)
    )
    seen = []
    for task in first.tasks:
        mapping = dict(zip(task.train.y, classes_of(task.train), strict=True))
        assert set(mapping) == set(task.classes)
        assert mapping == dict(zip(task.test.y, classes_of(task.test), strict=True))
        seen += mapping.values()
        assert task.name == "classes " + ",".join(str(mapping[unit]) for unit in task.classes)
    assert sorted(seen) == list(range(100))
    assert seen != sorted(seen)
    names = [[task.name for task in stream.tasks] for stream in (first, again, other)]
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("num_tasks", [1, 10, 100])
def test_classes_in_other_numbers_of_tasks(tiny, num_tasks):
    stream = load_stream("split-cifar100", num_tasks=num_tasks, **tiny)
    assert len(stream.tasks) == num_tasks
    assert stream.num_outputs == 100
    assert {len(task.classes) for task in stream.tasks} == {100 // num_tasks}


def test_five_datasets(tiny):
    stream = load_stream("five-datasets", **tiny)
    names = ["cifar10", "mnist", "svhn_cropped", "not_mnist", "fashion_mnist"]
    assert [task.name for task in stream.tasks] == names
    two = load_stream("five-datasets", num_tasks=2, **tiny)
    assert [task.name for task in two.tasks] == names[:2]
    assert two.num_outputs == 20
    shuffled = load_stream("five-datasets", order_seed=3, **tiny)
    assert sorted(task.name for task in shuffled.tasks) == sorted(names)
    assert [task.name for task in shuffled.tasks] != names


def test_five_datasets_needs_only_what_it_uses(tmp_path):
    write(tmp_path, "cifar10")
    load_stream("five-datasets", num_tasks=1, data_dirs=[tmp_path], cache_dir=tmp_path / "cache")
    with pytest.raises(UserError, match="needs mnist, found in none of"):
        load_stream("five-datasets", num_tasks=2, data_dirs=[tmp_path])


def test_rotated(mnist):
    stream = load_stream("rotated-mnist", num_tasks=12, **mnist)
    assert [task.name for task in stream.tasks][-2:] == ["300 deg", "330 deg"]
    upright, turned = (stream.tasks[k].test.take(np.arange(4))[0] for k in (0, 3))
    np.testing.assert_array_equal(turned, np.rot90(upright, axes=(1, 2)))
    shuffled = load_stream("rotated-mnist", order_seed=0, **mnist)
    names = [task.name for task in shuffled.tasks]
    assert names != sorted(names, key=lambda name: int(name.split()[0]))
    assert set(names) == {f"{30 * k} deg" for k in range(10)}


def test_permuted(mnist):
    stream = load_stream("permuted-mnist", **mnist)
    plain, permuted = (stream.tasks[k].train.take(np.arange(4))[0] for k in (0, 1))
    np.testing.assert_array_equal(plain, stream.tasks[0].train.x[:4])
    assert (plain != permuted).any()
    np.testing.assert_array_equal(np.sort(plain.reshape(4, -1)), np.sort(permuted.reshape(4, -1)))
    longer = load_stream("permuted-mnist", num_tasks=15, order_seed=0, **mnist)
    np.testing.assert_array_equal(permuted, longer.tasks[1].train.take(np.arange(4))[0])
    other = load_stream("permuted-mnist", order_seed=1, **mnist)
    assert (permuted != other.tasks[1].train.take(np.arange(4))[0]).any()


@pytest.mark.parametrize("name", ["rotated-digits", "rotated-mnist", "permuted-mnist"])
def test_shared_head(name, tiny):
    stream = load_stream(name, shared_head=True, **tiny)
    assert stream.num_outputs == 10
    assert {task.classes for task in stream.tasks} == {range(10)}
    assert {label for task in stream.tasks for label in task.train.y} == set(range(10))


def test_digits():
    stream = load_stream("rotated-digits")
    again = load_stream("rotated-digits")
    task = stream.tasks[0]
    assert (len(task.train), len(task.test)) == (1438, 359)
    np.testing.assert_array_equal(task.train.x, again.tasks[0].train.x)
    images = task.train.x
    assert (images.min(), images.max()) == (0, 255)
    counts = np.bincount(task.test.y)
    assert counts.min() >= 34
    seen = {image.tobytes() for image in images}
    assert sum(image.tobytes() in seen for image in task.test.x) == 0


# Held-out examples.


@pytest.mark.parametrize("name", STREAMS)
def test_holding_out(name, tiny):
    """Recomputed class by class: every n-th example, the same ones in every task."""
    whole = load_stream(name, num_tasks=2, **tiny)
    for task, complete in zip(whole.holding_out(0.2).tasks, whole.tasks, strict=True):
        expected = []
        for unit in complete.classes:
            rows = [
                r for r, y in zip(complete.train.rows, complete.train.y, strict=True) if y == unit
            ]
            count = max(round(0.2 * len(rows)), 1)
            expected += [rows[k * len(rows) // count - 1] for k in range(1, count + 1)]
        assert task.validation.rows.tolist() == sorted(expected)
        assert set(task.train.rows) == set(complete.train.rows) - set(expected)
        assert task.validation.transform is task.train.transform
        assert task.classes == complete.classes
        y = dict(zip(complete.train.rows, complete.train.y, strict=True))
        for part in (task.train, task.validation):
            assert part.y.tolist() == [y[row] for row in part.rows]
        np.testing.assert_array_equal(task.test.rows, complete.test.rows)


def test_what_is_held_out_depends_on_the_data_alone(tiny):
    streams = [
        load_stream("split-cifar100", **tiny, **changes).holding_out(0.3)
        for changes in ({}, dict(order_seed=5), dict(num_tasks=4))
    ]
    held = [{row for t in stream.tasks for row in t.validation.rows} for stream in streams]
    assert held[0] == held[1] == held[2]


def test_holding_out_where_there_are_no_classes():
    x = np.arange(10.0).reshape(10, 1)
    (task,) = Stream.from_arrays([((x, x), (x, x))]).holding_out(0.2).tasks
    assert task.validation.rows.tolist() == [4, 9]
    assert task.train.y.ravel().tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    given = Stream("given", [Task("a", (x, x), (x, x), validation=(x, x))])
    assert len(given.holding_out(0.2).tasks[0].train) == 10


@pytest.mark.parametrize("fraction", [1.0, -0.1, float("nan")])
def test_a_fraction_that_is_none(fraction):
    with pytest.raises(UserError, match=r"in \[0, 1\), not"):
        load_stream("rotated-digits").holding_out(fraction)


def test_shortened():
    whole = load_stream("rotated-digits", num_tasks=2).holding_out(0.1)
    for task, complete in zip(whole.shortened(5).tasks, whole.tasks, strict=True):
        for part in PARTS:
            few, all_ = getattr(task, part), getattr(complete, part)
            spread = np.linspace(0, len(all_) - 1, 5).round().astype(int)
            np.testing.assert_array_equal(few.rows, all_.rows[spread])
            np.testing.assert_array_equal(few.y, all_.y[spread])
        assert task.classes == complete.classes
    assert len(whole.shortened(10_000).tasks[0].train) == len(whole.tasks[0].train)


@pytest.mark.parametrize(
    ("size", "fraction", "expected"),
    [(10, 0.1, 1), (4, 0.1, 1), (1, 0.5, 0), (2, 0.9, 1), (500, 0.1, 50), (0, 0.5, 0)],
)
def test_spaced(size, fraction, expected):
    assert spaced(np.zeros(size, int), fraction).sum() == expected


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(name="split-cifar100", num_tasks=7), "equal tasks .1, 2, 4, 5, 10, 20, 25, 50, 100"),
        (dict(name="split-cifar100", num_tasks=0), "--num-tasks must be at least 1, and is 0"),
        (dict(name="permuted-mnist", num_tasks=10_001), "--num-tasks must be at most 10000"),
        (dict(name="five-datasets", num_tasks=6), "at most 5 for five-datasets"),
        (dict(name="rotated-digits", num_tasks=13), "at most 12 for rotated-digits"),
        (dict(name="rotated-digits", order_seed=-1), "--order-seed must not be negative"),
    ],
)
def test_wrong_settings(arguments, message):
    """Refused before any data are looked for."""
    with pytest.raises(UserError, match=message):
        load_stream(**arguments)


def test_missing_data(tmp_path):
    with pytest.raises(UserError) as caught:
        load_stream("rotated-mnist", data_dirs=[tmp_path / "one", tmp_path / "two"])
    message = str(caught.value)
    assert f"mnist, found in none of: {tmp_path / 'one'}, {tmp_path / 'two'}" in message
    assert message.endswith("python -m train prepare rotated-mnist")
    with pytest.raises(UserError, match="--manual-dir DIR, where DIR holds mini_imagenet/ with"):
        load_stream("split-mini-imagenet", data_dirs=[tmp_path])
    with pytest.raises(UserError, match=r"cifar10 and mnist and .* DIR holds notMNIST_small"):
        load_stream("five-datasets", data_dirs=[tmp_path])


def edit_info(directory: pathlib.Path, **changes) -> None:
    path = directory / "mnist" / "1.0.0" / "dataset_info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_another_file_format(mnist):
    data = mnist["data_dirs"][0]
    edit_info(data, fileFormat="tfrecord")
    for path in list((data / "mnist" / "1.0.0").glob("*array_record*")):
        path.rename(path.with_name(path.name.replace("array_record", "tfrecord")))
    with pytest.raises(UserError, match=r"format tfrecord.*prepare rotated-mnist"):
        load_stream("rotated-mnist", **mnist)
    with pytest.raises(UserError, match=r"holds mnist as tfrecord.*--data-dir"):
        prepare("rotated-mnist", data_dir=data)
    (status,) = (one for one in data_status(data) if one.stream == "rotated-mnist")
    assert (status.present, status.file_format) == (False, "tfrecord")
    # A readable copy further on is taken instead.
    write(data / "more", "mnist")
    load_stream("rotated-mnist", data_dirs=[data, data / "more"], cache_dir=mnist["cache_dir"])


def test_labels_out_of_range(tmp_path):
    classes = list(range(10))
    write(tmp_path, "mnist", labels=([*classes, 10], classes))
    with pytest.raises(UserError, match="mnist train has the label 10, outside the 10 classes"):
        load_stream("rotated-mnist", data_dirs=[tmp_path], cache_dir=tmp_path / "cache")


def test_class_without_examples(tmp_path):
    classes = list(range(10))
    write(tmp_path, "mnist", labels=([0, 1, 2, 4, 5, 6, 8, 9], classes))
    with pytest.raises(UserError, match="mnist has no train example of class 3, 7"):
        load_stream("rotated-mnist", data_dirs=[tmp_path], cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json", "array_record"])
def test_damaged_data(mnist, file):
    (path,) = mnist["data_dirs"][0].glob(
        "mnist/1.0.0/mnist-train*" if file == "array_record" else f"mnist/1.0.0/{file}"
    )
    damage(path)
    with pytest.raises(UserError, match="Delete"):
        load_stream("rotated-mnist", **mnist)
    assert not list(mnist["cache_dir"].glob("*"))


def test_missing_shard(mnist):
    next(mnist["data_dirs"][0].glob("mnist/1.0.0/mnist-train*")).unlink()
    with pytest.raises(UserError, match="has 0 of 1 files of split train"):
        load_stream("rotated-mnist", **mnist)


# A user's own.


def arrays(*shape: int, classes: range = range(2), size: int = 6, dtype=np.float32):
    x = np.random.default_rng(0).integers(0, 9, (size, *shape)).astype(dtype)
    return x, np.resize(classes, size)


def test_from_arrays():
    one, other = arrays(4), arrays(4, classes=range(3))
    stream = Stream.from_arrays([(one, other), (other, one)], task_names=["a", "b"])
    assert [task.name for task in stream.tasks] == ["a", "b"]
    assert [task.classes for task in stream.tasks] == [range(3), range(3)]
    assert (stream.name, stream.num_outputs, stream.scale, stream.offset) == ("arrays", 3, None, 0)
    assert (stream.input_shape, stream.input_dtype) == ((4,), np.float32)
    x, y = stream.tasks[0].train.take(np.array([5, 0]))
    np.testing.assert_array_equal(x, one[0][[5, 0]])
    assert (y.tolist(), y.dtype) == ([1, 0], np.int32)
    own = Stream.from_arrays(
        [(one, one), (other, other), (one, one)], heads="own", class_names=list("abcdefg")
    )
    assert [task.classes for task in own.tasks] == [range(2), range(2, 5), range(5, 7)]
    assert own.tasks[1].test.y.tolist() == [2, 3, 4, 2, 3, 4]
    assert own.num_outputs == 7


@pytest.mark.parametrize(
    ("shape", "dtype", "scale"),
    [
        ((4, 4), np.uint8, 1 / 255),
        ((4, 4, 3), np.uint8, 1 / 255),
        ((4,), np.uint8, None),
        ((4, 4), np.float32, None),
        ((4, 4), np.int32, None),
    ],
)
def test_scale_of_arrays(shape, dtype, scale):
    part = arrays(*shape, dtype=dtype)
    assert Stream.from_arrays([(part, part)]).scale == scale
    assert Stream.from_arrays([(part, part)], scale=3.0).scale == 3.0


def test_targets_that_are_no_classes():
    x, y = arrays(3)
    values = Task("values", (x, np.linspace(0, 1, 6)), (x, y / 7))
    assert (values.classes, values.train.y.dtype) == (None, np.float32)
    assert Stream("values", [values]).num_outputs == 1
    pairs = Stream.from_arrays([((x, x[:, :2]), (x, x[:, :2]))])
    assert (pairs.num_outputs, pairs.target_shape, pairs.tasks[0].classes) == (2, (2,), None)
    text = np.arange(12).reshape(6, 2)
    tokens = Stream.from_arrays([((text, text), (text, text + 1))])
    assert (tokens.num_outputs, tokens.tasks[0].classes) == (13, None)
    following = Task("next", (text, y), (text, y), classes=())
    assert (following.classes, Stream("text", [following]).num_outputs) == (None, 2)
    # What was said once is not forgotten.
    (shorter,) = Stream("text", [following]).holding_out(0.5).shortened(2).tasks
    assert (shorter.classes, len(shorter.validation)) == (None, 2)


def test_classes_of_a_task():
    x, y = arrays(3)
    assert Task("gap", (x, 3 * y), (x, 3 * y)).classes == (0, 3)
    task = Task("given", (x, y), (x, y), classes=[1, 0])
    assert task.classes == (1, 0)
    assert dataclasses.replace(task, name="other").classes == (1, 0)
    assert Task("boolean", (x, y > 0), (x, y > 0)).classes == range(2)
    for classes in ([0, 0], [-1, 0], [0.5, 1], "ab"):
        with pytest.raises(UserError, match="classes of task 'bad' must be different integers"):
            Task("bad", (x, y), (x, y), classes=classes)


def test_arrays_stay_on_disk(tmp_path):
    x, y = arrays(4, 4, dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    stream = Stream.from_arrays([((mapped, y), (mapped, y))])
    assert stream.tasks[0].train.x is mapped
    assert stream.fingerprints() == Stream.from_arrays([((x, y), (x, y))]).fingerprints()


GOOD = (np.zeros((2, 3)), np.array([0, 1]))


@pytest.mark.parametrize(
    ("tasks", "arguments", "message"),
    [
        ([], {}, "has no tasks: give a list of"),
        ([(GOOD,)], {}, r"task 0 must be given as \(\(x, y\), \(x_test, y_test\)\)"),
        ([(GOOD, None)], {}, "test of task 'task 0' must be a pair of arrays"),
        ([(GOOD, (GOOD[0], [1]))], {}, "test of task 'task 0' has 2 inputs and 1 targets"),
        ([(GOOD, (GOOD[0][:0], GOOD[1][:0]))], {}, "Task 'task 0' of arrays has no test examples"),
        ([(GOOD, (["a", "b"], [0, 1]))], {}, "x in test of task 'task 0' must be .* numbers"),
        ([(GOOD, ([[1], [1, 2]], [0, 1]))], {}, "x in test of task 'task 0' is no array"),
        ([(GOOD, (np.array([None, 1]), [0, 1]))], {}, "of numbers, and is of object"),
        ([(GOOD, (1.0, [0, 1]))], {}, "must have an axis of examples"),
        ([(GOOD, (GOOD[0], [0, 2**40]))], {}, "does not fit into 32 bits"),
        ([(GOOD, (GOOD[0], [0, -1]))], {}, "must be different integers from 0 on"),
        ([(GOOD, (np.zeros((2, 4)), [0, 1]))], {}, "must have the same shape and dtype"),
        ([(GOOD, GOOD), ((GOOD[0] > 0, GOOD[1]), GOOD)], {}, "of x bool.3., y int32.., and those"),
        ([(GOOD, (GOOD[0] * np.nan, [0, 1]))], {}, "test examples with NaN or infinity in x"),
        ([(GOOD, GOOD)], dict(heads="two"), "heads must be"),
        ([(GOOD, GOOD)], dict(task_names=["a", "b"]), "1 tasks and 2 task names"),
        ([(GOOD, GOOD)], dict(class_names=["a"]), "2 outputs and 1 class names"),
        ([((GOOD[0], [0.5, np.inf]),) * 2], {}, "train examples with NaN or infinity in y"),
        ([((GOOD[0], [0.5, 1]),) * 2], dict(heads="own"), "needs one integer label an example"),
    ],
)
def test_wrong_arrays(tasks, arguments, message):
    with pytest.raises(UserError, match=message):
        Stream.from_arrays(tasks, **arguments)


def test_wrong_streams():
    task = Task("a", GOOD, GOOD)
    with pytest.raises(UserError, match="must have one Task or more"):
        Stream("none", [])
    with pytest.raises(UserError, match="has 1 outputs, and a task with the class 1"):
        Stream("few", [task], num_outputs=1)
    with pytest.raises(UserError, match="test examples of class 1, and its classes are 0 to 0"):
        Stream("s", [Task("a", (GOOD[0], [0, 0]), GOOD, classes=[0])]).check("test")
    with pytest.raises(UserError, match="Task 'a' of s has no validation examples"):
        Stream("s", [task]).check("validation")
    beyond = Examples(GOOD[0], np.array([0, 5]), GOOD[1])
    with pytest.raises(UserError, match="x, rows and y do not belong together"):
        Stream("s", [Task("a", beyond, GOOD)]).check("test")


def test_fingerprints():
    def fingerprint(x=GOOD[0], y=GOOD[1], **changes) -> str:
        task = Task(**dict(dict(name="a", train=(x, y), test=GOOD), **changes))
        return Stream("s", [task]).fingerprints()[0]

    same = fingerprint()
    assert fingerprint(x=GOOD[0].copy(), classes=[0, 1], name="a") == same
    others = [
        fingerprint(name="b"),
        fingerprint(x=GOOD[0] + 1),
        fingerprint(x=GOOD[0].astype(np.float32)),
        fingerprint(x=GOOD[0].reshape(2, 3, 1)),
        fingerprint(y=GOOD[1][::-1]),
        fingerprint(test=(GOOD[0][:1], GOOD[1][:1]), classes=range(2)),
        fingerprint(classes=range(3)),
        fingerprint(classes=()),
        fingerprint(validation=GOOD),
    ]
    assert len({same, *others}) == 1 + len(others)


class Waves(NamedStream):
    """A user's stream with settings, on data of ours."""

    name = "waves"
    summary = "digits, as they are"
    data_sets = ("digits",)
    image_shape = (16, 16, 1)

    def plans(self):
        plan = dataclasses.replace(STREAMS["rotated-digits"], num_tasks=1).plans()[0]
        return [plan._replace(name=str(k)) for k in range(self.num_tasks)]


def test_as_stream():
    task = Task("a", GOOD, GOOD)
    stream = Stream("mine", [task])
    assert as_stream(stream) is stream
    assert as_stream(lambda: stream) is stream
    assert as_stream([task, task]).num_outputs == 2

    def mine():
        return (task,)

    assert as_stream(mine).name == "mine"
    assert len(as_stream(STREAMS["rotated-digits"]).tasks) == 10
    assert [task.name for task in as_stream(Waves(num_tasks=2)).tasks] == ["0", "1"]
    assert len(as_stream(Waves).tasks) == 10


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "must be a train.Stream, .* and int is or returns int"),
        ([], "is or returns list"),
        ([GOOD], "is or returns list"),
        (lambda: None, "is or returns NoneType"),
        (lambda x: x, "must be callable without arguments"),
        (dict, "dict must be callable without arguments"),
    ],
)
def test_what_is_no_stream(given, message):
    with pytest.raises(UserError, match=message):
        as_stream(given)


# Where data are found.


def test_data_directories(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", f"/data/one{os.pathsep}/data/two")
    assert prepared.data_directories() == [pathlib.Path("/data/one"), pathlib.Path("/data/two")]
    assert prepared.data_directories(["/other"]) == [pathlib.Path("/other")]
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert prepared.data_directories() == [tmp_path / "tensorflow_datasets"]


def test_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TAG_OPTAX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_directory() == tmp_path / ".cache" / "tag_optax"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_directory() == pathlib.Path("/xdg/tag_optax")
    monkeypatch.setenv("TAG_OPTAX_CACHE", "/scratch")
    assert cache.cache_directory() == pathlib.Path("/scratch")
    assert cache.cache_directory("/argument") == pathlib.Path("/argument")


def test_newest_version_is_taken(mnist):
    versions = mnist["data_dirs"][0] / "mnist"
    for version in ("1.0.1", "1.0.10", "incomplete.ABC_9.0.0"):
        (versions / version).mkdir()
        for path in (versions / "1.0.0").iterdir():
            (versions / version / path.name).write_bytes(path.read_bytes())
    found = prepared.find("mnist", mnist["data_dirs"])
    assert found is not None
    assert found.version == "1.0.10"


def test_data_status(mnist):
    found = data_status(mnist["data_dirs"])
    statuses = {(one.stream, one.data_set): one for one in found}
    assert list(dict.fromkeys(stream for stream, _ in statuses)) == list(STREAMS)
    absent = statuses["five-datasets", "not_mnist"]
    assert (absent.present, absent.found) == (False, None)
    assert absent.looked_in == tuple(mnist["data_dirs"])
    there = statuses["rotated-mnist", "mnist"]
    assert (there.present, there.subset) == (True, True)
    assert there.found == mnist["data_dirs"][0] / "mnist" / "1.0.0"
    assert (there.num_train, there.num_test) == (10 * TRAIN, 10 * TEST)
    assert there.num_bytes > 1000
    assert statuses["rotated-digits", "digits"].present


# Real data.


def real(name: str, tmp_path: pathlib.Path, **arguments):
    for data_set in STREAMS[name].data_sets:
        if prepared.find(data_set, REAL) is None:
            pytest.skip(f"{data_set} is not beside the checkout")
    return load_stream(name, data_dirs=REAL, cache_dir=tmp_path, **arguments)


def test_real_birds(tmp_path):
    stream = real("split-cub", tmp_path)
    assert stream.sources == ["caltech_birds2011 0.2.0 (800 + 400, a subset of 5994 + 5794)"]
    assert {(len(task.train), len(task.test)) for task in stream.tasks} == {(40, 20)}
    images, _ = stream.tasks[7].train.take(np.arange(5))
    assert images.shape == (5, 224, 224, 3)
    assert images.std() > 20


@pytest.mark.slow
def test_real_cifar100(tmp_path):
    stream = real("split-cifar100", tmp_path).holding_out(0.1)
    assert stream.sources == ["cifar100 3.0.2 (50000 + 10000)"]
    assert stream.class_names[:2] == ["apple", "aquarium_fish"]
    sizes = {(len(t.train), len(t.validation), len(t.test)) for t in stream.tasks}
    assert sizes == {(2250, 250, 500)}
    reader = tfds.builder_from_directory(REAL[0] / "cifar100" / "3.0.2")
    source = reader.as_data_source("test")
    for task in stream.tasks[:3]:
        for row, label in zip(task.test.rows[:20], task.test.y[:20], strict=True):
            np.testing.assert_array_equal(task.test.x[row], source[int(row)]["image"])
            assert label == source[int(row)]["label"]


@pytest.mark.slow
def test_real_mnist(tmp_path):
    stream = real("rotated-mnist", tmp_path)
    assert stream.sources == ["mnist 3.0.1 (60000 + 10000)"]
    assert {(len(task.train), len(task.test)) for task in stream.tasks} == {(60000, 10000)}
