"""Streams: tasks and heads, what is held out, what is refused, where data are found.

On tiny data sets that are written here, and on real ones where they are beside the checkout.
"""

import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

from train.errors import UserError
from train.streams import STREAMS, Examples, cache, data_status, load_stream, prepare, prepared
from train.streams.sampling import spaced

from .tiny_data import TEST, TRAIN, damage, write, write_all

SHARED = pathlib.Path(__file__).parents[3] / "shared"
REAL = (SHARED / "tfds", SHARED / "tfds_subset")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> dict[str, pathlib.Path]:
    """Small copies of all data sets, and a cache."""
    root = tmp_path_factory.mktemp("tiny")
    write_all(root / "data")
    return dict(data_dirs=[root / "data"], cache_dir=root / "cache")


# Tasks and heads.


@pytest.mark.parametrize("name", STREAMS)
def test_every_stream(name, tiny):
    spec = STREAMS[name]
    stream = load_stream(name, **tiny)
    assert len(stream.tasks) == spec.default_tasks
    assert stream.num_outputs == spec.default_tasks * spec.classes_per_task
    assert stream.image_shape == spec.image_shape
    assert (stream.scale, stream.offset) == (spec.scale, spec.offset)
    assert len(stream.sources) == len(spec.data_sets)
    for position, task in enumerate(stream.tasks):
        start = position * spec.classes_per_task
        assert task.classes == range(start, start + spec.classes_per_task)
        assert len(task.validation) == 0
        for part in (task.train, task.test):
            assert set(part.labels) == set(task.classes)
            images, labels = part.take(np.arange(3))
            assert (images.shape, images.dtype) == ((3, *spec.image_shape), np.uint8)
            assert (labels.shape, labels.dtype) == ((3,), np.int32)
            assert part.rows.dtype == np.int64
    assert len({task.name for task in stream.tasks}) == len(stream.tasks)


def test_registry():
    assert list(STREAMS) == [
        "split-cifar100",
        "split-mini-imagenet",
        "split-cub",
        "five-datasets",
        "rotated-mnist",
        "permuted-mnist",
        "rotated-digits",
    ]
    for spec in STREAMS.values():
        black, white = spec.offset, 255 * spec.scale + spec.offset
        expected = (-1, 1) if spec.name in ("split-mini-imagenet", "split-cub") else (0, 1)
        assert (black, white) == pytest.approx(expected)


def classes_of(examples: Examples) -> np.ndarray:
    """The class of each example, which is the grey level of its last pixel."""
    return examples.images[examples.rows][:, -1, -1, -1]


def test_natural_order(tiny):
    stream = load_stream("split-cifar100", **tiny)
    assert [task.name for task in stream.tasks][:2] == ["classes 0-4", "classes 5-9"]
    for task in stream.tasks:
        np.testing.assert_array_equal(classes_of(task.train), task.train.labels)
        assert len(task.train) == 5 * TRAIN
        assert len(task.test) == 5 * TEST


def test_order_seed_renumbers_the_classes(tiny):
    first, again, other = (
        load_stream("split-cifar100", order_seed=seed, **tiny) for seed in (1, 1, 2)
    )
    seen = []
    for task in first.tasks:
        mapping = dict(zip(task.train.labels, classes_of(task.train), strict=True))
        assert set(mapping) == set(task.classes)
        assert mapping == dict(zip(task.test.labels, classes_of(task.test), strict=True))
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
    np.testing.assert_array_equal(plain, stream.tasks[0].train.images[:4])
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
    assert {label for task in stream.tasks for label in task.train.labels} == set(range(10))


def test_digits():
    stream = load_stream("rotated-digits")
    again = load_stream("rotated-digits")
    task = stream.tasks[0]
    assert (len(task.train), len(task.test)) == (1438, 359)
    np.testing.assert_array_equal(task.train.images, again.tasks[0].train.images)
    images = task.train.images
    assert (images.min(), images.max()) == (0, 255)
    counts = np.bincount(task.test.labels)
    assert counts.min() >= 34
    seen = {image.tobytes() for image in images}
    assert sum(image.tobytes() in seen for image in task.test.images) == 0


# Held-out examples.


@pytest.mark.parametrize("name", ["split-cifar100", "rotated-mnist", "rotated-digits"])
def test_hold_out(name, tiny):
    whole = load_stream(name, **tiny)
    stream = load_stream(name, hold_out=0.2, **tiny)
    for task, complete in zip(stream.tasks, whole.tasks, strict=True):
        train, held = set(task.train.rows), set(task.validation.rows)
        assert not train & held
        assert train | held == set(complete.train.rows)
        assert len(held) == pytest.approx(0.2 * len(complete.train), rel=0.01)
        assert set(task.validation.labels) == set(task.classes)
        assert task.validation.transform is task.train.transform
        np.testing.assert_array_equal(task.test.rows, complete.test.rows)


def test_hold_out_depends_on_the_data_alone(tiny):
    streams = [
        load_stream("split-cifar100", hold_out=0.3, **tiny, **arguments)
        for arguments in ({}, dict(order_seed=5), dict(num_tasks=4))
    ]
    held = [{row for t in stream.tasks for row in t.validation.rows} for stream in streams]
    assert held[0] == held[1] == held[2]


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
        (dict(name="split-cifar10"), "Did you mean split-cifar100?"),
        (dict(name="split-cifar100", num_tasks=7), "1, 2, 4, 5, 10, 20, 25, 50, 100"),
        (dict(name="split-cifar100", num_tasks=0), "at least one task"),
        (dict(name="split-cifar100", shared_head=True), "different classes"),
        (dict(name="five-datasets", shared_head=True), "different classes"),
        (dict(name="five-datasets", num_tasks=6), "5 tasks at most"),
        (dict(name="rotated-digits", num_tasks=13), "12 tasks at most"),
        (dict(name="rotated-digits", hold_out=1.0), r"in \[0, 1\), not 1.0"),
        (dict(name="rotated-digits", hold_out=-0.1), r"in \[0, 1\)"),
        (dict(name="rotated-digits", hold_out=float("nan")), r"in \[0, 1\)"),
        (dict(name="rotated-digits", order_seed=-1), "not be negative"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(UserError, match=message):
        load_stream(**arguments, data_dirs=["/nowhere"])


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
    def statuses():
        return {(one.stream, one.data_set): one for one in data_status(**mnist)}

    before = statuses()
    assert list(dict.fromkeys(stream for stream, _ in before)) == list(STREAMS)
    absent = before["five-datasets", "not_mnist"]
    assert (absent.present, absent.found) == (False, None)
    assert absent.looked_in == tuple(mnist["data_dirs"])
    assert absent.command == "python -m train prepare five-datasets --manual-dir DIR"
    there = before["rotated-mnist", "mnist"]
    assert (there.present, there.cached, there.subset) == (True, False, True)
    assert there.found == mnist["data_dirs"][0] / "mnist" / "1.0.0"
    assert (there.num_train, there.num_test) == (10 * TRAIN, 10 * TEST)
    assert there.num_bytes > 1000
    assert before["rotated-digits", "digits"].present
    load_stream("rotated-mnist", **mnist)
    after = statuses()
    assert after["rotated-mnist", "mnist"].cached
    assert not after["five-datasets", "mnist"].cached  # Another size and colour.


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
    stream = real("split-cifar100", tmp_path, hold_out=0.1)
    assert stream.sources == ["cifar100 3.0.2 (50000 + 10000)"]
    sizes = {(len(t.train), len(t.validation), len(t.test)) for t in stream.tasks}
    assert sizes == {(2250, 250, 500)}
    reader = tfds.builder_from_directory(REAL[0] / "cifar100" / "3.0.2")
    source = reader.as_data_source("test")
    for task in stream.tasks[:3]:
        for row, label in zip(task.test.rows[:20], task.test.labels[:20], strict=True):
            np.testing.assert_array_equal(task.test.images[row], source[int(row)]["image"])
            assert label == source[int(row)]["label"]


@pytest.mark.slow
def test_real_mnist(tmp_path):
    stream = real("rotated-mnist", tmp_path)
    assert stream.sources == ["mnist 3.0.1 (60000 + 10000)"]
    assert {(len(task.train), len(task.test)) for task in stream.tasks} == {(60000, 10000)}
