"""Preparing data: the two builders of ours, on made-up and on real files, and what is refused."""

import importlib.util
import io
import json
import os
import pathlib
import pickle
import tarfile

import numpy as np
import pytest

from train.errors import UserError
from train.streams import preparation, prepare
from train.streams.builders import BUILDERS, LETTERS, read_archive, read_classes
from train.streams.pickles import load_arrays
from train.streams.prepared import encoded, png

from .tiny_data import load_stream

pytestmark = pytest.mark.ci

RAW = pathlib.Path(__file__).parents[3] / "shared" / "raw"
NAMES = [f"n{k:08d}" for k in range(100)]
PARTS = {"train": NAMES[:64], "val": NAMES[64:80], "test": NAMES[80:]}


def test_registered_names():
    assert {name: str(builder.VERSION) for name, builder in BUILDERS.items()} == {
        "mini_imagenet": "1.0.0",
        "not_mnist": "1.0.0",
    }


# notMNIST.


def letter(level: int) -> bytes:
    return png(np.full((28, 28), level, np.uint8))


def write_archive(directory: pathlib.Path, files: dict[str, bytes], links: tuple[str, ...] = ()):
    directory.mkdir(exist_ok=True)
    with tarfile.open(directory / "notMNIST_small.tar.gz", "w:gz") as archive:
        for name in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def letters(count: int = 20) -> dict[str, bytes]:
    return {
        f"notMNIST_small/{name}/{k:02d}.png": letter(10 * position + k)
        for position, name in enumerate(LETTERS)
        for k in range(count)
    }


def test_not_mnist(tmp_path, capsys):
    files = letters()
    files["notMNIST_small/A/broken.png"] = b""
    files["notMNIST_small/F/cut.png"] = letter(1)[:-40]
    write_archive(tmp_path / "manual", files)
    builder = BUILDERS["not_mnist"]
    prepare_alone("not_mnist", tmp_path)
    assert "not_mnist: skipped 2 unreadable images" in capsys.readouterr().err
    directory = tmp_path / "data" / "not_mnist" / str(builder.VERSION)
    assert json.loads((directory / "metadata.json").read_text()) == {"unreadable": 2}
    assert (directory / "label.labels.txt").read_text().split() == list(LETTERS)
    train, test = (read(tmp_path, "not_mnist", split) for split in ("train", "test"))
    assert np.bincount(train[1]).tolist() == [18] * 10
    assert np.bincount(test[1]).tolist() == [2] * 10
    levels = np.concatenate([train[0][:, 0, 0, 0], test[0][:, 0, 0, 0]])
    assert sorted(levels) == sorted(10 * label + k for label in range(10) for k in range(20))


def prepare_alone(name: str, directory: pathlib.Path) -> None:
    """The builder by itself: five-datasets would download its other data sets."""
    import tensorflow_datasets as tfds

    builder = BUILDERS[name](data_dir=directory / "data", file_format="array_record")
    config = tfds.download.DownloadConfig(manual_dir=directory / "manual")
    builder.download_and_prepare(download_config=config)


def read(directory: pathlib.Path, name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    import tensorflow_datasets as tfds

    version = directory / "data" / name / "1.0.0"
    source = tfds.builder_from_directory(version).as_data_source(
        split, decoders={"image": tfds.decode.SkipDecoding()}
    )
    records = [source[k] for k in range(len(source))]
    images = [np.asarray(decoded(record["image"])) for record in records]
    return np.stack(images), np.array([record["label"] for record in records])


def decoded(content: bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return np.atleast_3d(np.asarray(image))


def test_split_ignores_the_order_of_the_archive(tmp_path):
    files = letters()
    for name, content in (("one", files), ("two", dict(reversed(files.items())))):
        (tmp_path / name).mkdir()
        write_archive(tmp_path / name / "manual", content)
        prepare_alone("not_mnist", tmp_path / name)
    first, second = (read(tmp_path / name, "not_mnist", "test")[0] for name in ("one", "two"))
    np.testing.assert_array_equal(first, second)


def test_odd_members_are_passed_over(tmp_path):
    good = letters(2)
    odd = {
        "../A/up.png": letter(1),
        "/tmp/A/absolute.png": letter(1),
        "notMNIST_small/../A/up.png": letter(1),
        "notMNIST_small/K/other.png": letter(1),
        "notMNIST_small/A/._hidden.png": b"resource fork",
        "notMNIST_small/A/note.txt": b"text",
        "notMNIST_small/A/deep/er.png": letter(1),
        "notMNIST_small/A/huge.png": b"\0" * (2 << 20),
    }
    links = ("notMNIST_small/B/link.png", "notMNIST_small/C")
    write_archive(tmp_path, good | odd, links)
    found, unreadable = read_archive(tmp_path / "notMNIST_small.tar.gz")
    assert unreadable == 0
    assert {f"notMNIST_small/{one}/{name}" for one, name in found} == set(good)
    assert sorted(os.listdir(tmp_path)) == ["notMNIST_small.tar.gz"]


def test_archive_that_is_none(tmp_path):
    path = tmp_path / "notMNIST_small.tar.gz"
    with pytest.raises(UserError, match=r"There is no .*notMNIST_small.tar.gz\. Put into"):
        read_archive(path)
    path.write_bytes(b"not an archive")
    with pytest.raises(UserError, match=r"no complete tar.gz archive"):
        read_archive(path)
    write_archive(tmp_path, letters())
    whole = path.read_bytes()
    for cut in (-4, -100, -len(whole) // 2):
        path.write_bytes(whole[:cut])
        with pytest.raises(UserError, match=r"no complete tar.gz archive"):
            read_archive(path)
    write_archive(tmp_path, {name: one for name, one in letters(1).items() if "/C/" not in name})
    with pytest.raises(UserError, match="has no images of C"):
        read_archive(path)


def test_images_of_other_kinds_are_converted():
    colour = png(np.full((30, 20, 3), 90, np.uint8))
    content = encoded(colour, (28, 28), "L")
    assert content is not None
    np.testing.assert_array_equal(decoded(content), np.full((28, 28, 1), 90))
    grey = png(np.full((84, 84), 7, np.uint8))
    content = encoded(grey, (84, 84), "RGB")
    assert content is not None
    np.testing.assert_array_equal(decoded(content), np.full((84, 84, 3), 7))


# miniImageNet.


def picture(label: int, k: int) -> bytes:
    return png(np.full((84, 84, 3), (label, k, 0), np.uint8))


def write_folders(root: pathlib.Path, names: list[str], keys: range) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        for k in keys:
            (root / name / f"{k}.png").write_bytes(picture(NAMES.index(name), k))


def write_pickles(root: pathlib.Path, count: int, protocol: int = 2) -> None:
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, names in PARTS.items():
        # The members of a class need not be neighbours.
        owner = rng.permutation(np.repeat(np.arange(len(names)), count))
        images = np.zeros((len(owner), 84, 84, 3), np.uint8)
        images[..., 0] = (NAMES.index(names[0]) + owner)[:, None, None]
        members = {name: np.flatnonzero(owner == k).tolist() for k, name in enumerate(names)}
        content = {"image_data": images, "class_dict": members}
        (root / f"mini-imagenet-cache-{part}.pkl").write_bytes(
            pickle.dumps(content, protocol=protocol)
        )


def check_mini_imagenet(directory: pathlib.Path, train: int, test: int) -> None:
    prepare("split-mini-imagenet", manual_dir=directory / "manual", data_dir=directory / "data")
    stream = load_stream(
        "split-mini-imagenet", data_dirs=[directory / "data"], cache_dir=directory / "cache"
    )
    for task in stream.tasks:
        assert np.bincount(task.train.y)[task.classes.start :].tolist() == [train] * 5
        assert np.bincount(task.test.y)[task.classes.start :].tolist() == [test] * 5
        for part in (task.train, task.test):
            images, labels = part.take(np.arange(len(part)))
            np.testing.assert_array_equal(images[:, 0, 0, 0], labels)
    names = directory / "data" / "mini_imagenet" / "1.0.0" / "label.labels.txt"
    assert names.read_text().split() == NAMES


def test_mini_imagenet_train_and_val(tmp_path):
    write_folders(tmp_path / "manual" / "mini_imagenet" / "train", NAMES, range(3))
    write_folders(tmp_path / "manual" / "mini_imagenet" / "val", NAMES, range(3, 5))
    check_mini_imagenet(tmp_path, train=3, test=2)


def test_mini_imagenet_one_folder(tmp_path):
    write_folders(tmp_path / "manual", NAMES, range(5))
    check_mini_imagenet(tmp_path, train=4, test=1)


def test_mini_imagenet_disjoint_parts(tmp_path):
    root = tmp_path / "manual" / "mini_imagenet"
    for part, names in PARTS.items():
        write_folders(root / part, names, range(5))
    check_mini_imagenet(tmp_path, train=4, test=1)


def test_mini_imagenet_pickles(tmp_path):
    write_pickles(tmp_path / "manual", count=5)
    check_mini_imagenet(tmp_path, train=4, test=1)


def test_mini_imagenet_unreadable_image(tmp_path, capsys):
    write_folders(tmp_path / "manual", NAMES, range(5))
    (tmp_path / "manual" / NAMES[3] / "0.png").write_bytes(b"broken")
    prepare("split-mini-imagenet", manual_dir=tmp_path / "manual", data_dir=tmp_path / "data")
    assert "skipped" in capsys.readouterr().err
    (metadata,) = tmp_path.glob("data/*/*/metadata.json")
    assert json.loads(metadata.read_text()) == {"unreadable": 1}


def test_mini_imagenet_split_of_the_whole(tmp_path):
    """600 images a class are 480 to learn from and 120 to test."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        for k in range(600 if name == NAMES[0] else 1):
            (tmp_path / name / f"{k}.jpg").touch()
    splits = read_classes(tmp_path)
    train, test = (splits[split][NAMES[0]] for split in ("train", "test"))
    assert (len(train), len(test)) == (480, 120)
    assert set(map(str, train)).isdisjoint(map(str, test))


def test_mini_imagenet_that_is_none(tmp_path):
    write_folders(tmp_path / "few", NAMES[:3], range(1))
    with pytest.raises(UserError, match="has 3 classes of images instead of 100"):
        read_classes(tmp_path / "few")
    write_folders(tmp_path / "mixed" / "train", NAMES[:64], range(1))
    write_folders(tmp_path / "mixed" / "val", NAMES[60:], range(1))
    with pytest.raises(UserError, match="share some of their classes"):
        read_classes(tmp_path / "mixed")
    write_pickles(tmp_path / "two", count=1)
    (tmp_path / "two" / "mini-imagenet-cache-val.pkl").unlink()
    with pytest.raises(UserError, match=r"no .*cache-val.pkl: all three"):
        read_classes(tmp_path / "two")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "lacks image_data"),
        ({"image_data": np.zeros((2, 3, 3, 3), np.uint8), "class_dict": {}}, "lacks image_data"),
        (
            {"image_data": np.zeros((2, 84, 84, 3), np.uint8), "class_dict": {"a": [0, 2]}},
            "names images that are not there",
        ),
    ],
)
def test_pickles_of_another_kind(tmp_path, content, message):
    for part in ("train", "val", "test"):
        (tmp_path / f"mini-imagenet-cache-{part}.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(UserError, match=message):
        read_classes(tmp_path)


# Pickles.


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_are_unpickled(tmp_path, protocol):
    content = {"a": np.arange(6, dtype=np.uint8).reshape(2, 3), "b": {"c": [1, np.int64(2)]}}
    path = tmp_path / "arrays.pkl"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    loaded = load_arrays(path)
    np.testing.assert_array_equal(loaded["a"], content["a"])
    assert loaded["b"] == content["b"]


def test_names_of_numpy_1(tmp_path):
    path = tmp_path / "arrays.pkl"
    array = np.arange(3, dtype=np.uint8)
    path.write_bytes(pickle.dumps(array, protocol=2).replace(b"numpy._core", b"numpy.core"))
    np.testing.assert_array_equal(load_arrays(path), array)


class Harmful:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize(
    ("harmful", "name"),
    [
        (Harmful(os.system, "touch hacked"), r"\.system"),
        (Harmful(eval, "1"), "builtins.eval"),
        (Harmful(getattr, "a", "upper"), "builtins.getattr"),
        (Harmful(np.load, "file"), "numpy.*load"),
        (Harmful(pathlib.Path, "a"), "pathlib"),
    ],
)
def test_other_pickles_are_refused(tmp_path, monkeypatch, harmful, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "harmful.pkl"
    path.write_bytes(pickle.dumps({"image_data": harmful}))
    with pytest.raises(UserError, match=f"is refused: it asks for .*{name}.* only arrays"):
        load_arrays(path)
    assert os.listdir(tmp_path) == ["harmful.pkl"]


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps([1, 2, 3])[:-4]])
def test_damaged_pickles_are_refused(tmp_path, content):
    path = tmp_path / "damaged.pkl"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is refused"):
        load_arrays(path)


# `prepare`.


def test_prepare_of_the_embedded_stream(capsys):
    prepare("rotated-digits")
    assert "nothing to prepare" in capsys.readouterr().err


def test_prepare_knows_its_streams():
    with pytest.raises(UserError, match="Did you mean rotated-mnist"):
        prepare("rotated_mnist")


def test_prepare_is_done_once(tmp_path, capsys):
    write_folders(tmp_path / "manual", NAMES, range(2))
    for _ in range(2):
        prepare("split-mini-imagenet", manual_dir=tmp_path / "manual", data_dir=tmp_path / "data")
    assert "mini_imagenet is prepared in" in capsys.readouterr().err


def test_prepare_without_manual_files(tmp_path):
    with pytest.raises(UserError, match=r"data/downloads/manual: mini_imagenet/ with"):
        prepare("split-mini-imagenet", data_dir=tmp_path / "data")
    (tmp_path / "manual").mkdir()
    (tmp_path / "manual" / "something else").touch()
    with pytest.raises(UserError, match=r"has 0 classes of images instead of 100\. Put into"):
        prepare("split-mini-imagenet", manual_dir=tmp_path / "manual", data_dir=tmp_path / "data")
    assert os.listdir(tmp_path) == ["manual"]
    (tmp_path / "data" / "mnist").mkdir(parents=True)
    with pytest.raises(UserError, match="has 0 classes"):
        prepare("split-mini-imagenet", manual_dir=tmp_path / "manual", data_dir=tmp_path / "data")
    assert os.listdir(tmp_path / "data") == ["mnist"]


def test_prepare_refuses_before_it_downloads(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(preparation, "_builder", lambda *arguments: pytest.fail("downloads"))
    with pytest.raises(UserError, match="not_mnist is not downloaded but made from"):
        prepare("five-datasets", data_dir=tmp_path / "data")
    assert not os.listdir(tmp_path)


def test_prepare_without_tensorflow(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorflow" else find_spec(name)
    )
    with pytest.raises(UserError, match=r"mnist needs .*tensorflow.*in the clone .*'\.\[tfds\]'"):
        prepare("rotated-mnist", data_dir=tmp_path)


def test_prepare_without_network(tmp_path, monkeypatch):
    import requests
    import tensorflow_datasets as tfds

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)

    class Builder:
        def download_and_prepare(self, download_config):
            raise requests.ConnectionError("name not resolved")

    monkeypatch.setattr(tfds, "builder", lambda *arguments, **options: Builder())
    with pytest.raises(UserError, match=r"mnist could not be prepared .* name not resolved"):
        prepare("rotated-mnist", data_dir=tmp_path)


def test_prepare_with_tensorflow(tmp_path, monkeypatch):
    """A builder of TFDS's own, with made-up files instead of a download."""
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    pytest.importorskip("importlib_resources", reason="importlib_resources is not installed")
    import tensorflow_datasets as tfds
    from tensorflow_datasets.image_classification import mnist

    counts = {"train": 20, "test": 10}
    files = {}
    for split, count in counts.items():
        monkeypatch.setattr(mnist, f"_{split.upper()}_EXAMPLES", count)
        files[f"{split}_data"] = tmp_path / f"{split}_data"
        files[f"{split}_data"].write_bytes(bytes(16 + count * 28 * 28))
        files[f"{split}_labels"] = tmp_path / f"{split}_labels"
        files[f"{split}_labels"].write_bytes(bytes(8) + bytes(range(10)) * (count // 10))
    manager = tfds.download.DownloadManager
    monkeypatch.setattr(manager, "download_and_extract", lambda self, urls: files)
    prepare("rotated-mnist", data_dir=tmp_path / "data")
    stream = load_stream("rotated-mnist", data_dirs=[tmp_path / "data"], cache_dir=tmp_path)
    assert (len(stream.tasks[0].train), len(stream.tasks[0].test)) == (20, 10)


# Real files.


@pytest.mark.skipif(not RAW.exists(), reason="the raw files are not beside the checkout")
def test_real_mini_imagenet(tmp_path):
    prepare("split-mini-imagenet", manual_dir=RAW, data_dir=tmp_path)
    stream = load_stream("split-mini-imagenet", data_dirs=[tmp_path], cache_dir=tmp_path / "cache")
    assert stream.sources == ["mini_imagenet 1.0.0 (800 + 300, a subset of 48000 + 12000)"]
    assert {(len(task.train), len(task.test)) for task in stream.tasks} == {(40, 15)}


@pytest.mark.skipif(not RAW.exists(), reason="the raw files are not beside the checkout")
def test_real_not_mnist():
    found, unreadable = read_archive(RAW / "notMNIST_small.tar.gz")
    assert (len(found), unreadable) == (9804, 0)
