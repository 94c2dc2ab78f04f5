"""The cache of decoded images: hit, keyed, damaged, raced for."""

import concurrent.futures
import multiprocessing
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from train.errors import UserError
from train.streams import cache

from .tiny_data import TEST, TRAIN, damage, load_stream, write

pytestmark = pytest.mark.ci


def test_cache_is_used(mnist, capsys):
    first = load_stream("rotated-mnist", **mnist)
    assert "decoding mnist train: 50 images, once" in capsys.readouterr().err
    again = load_stream("rotated-mnist", **mnist)
    assert capsys.readouterr().err == ""
    assert isinstance(again.tasks[0].train.x, np.memmap)
    np.testing.assert_array_equal(first.tasks[0].train.x, again.tasks[0].train.x)
    assert first.sources == ["mnist 1.0.0 (50 + 20, a subset of 60000 + 10000)"]


def test_cache_keys(mnist, tmp_path):
    """Other sizes, and other data of the same name and version, have entries of their own."""
    load_stream("rotated-mnist", **mnist)
    load_stream("permuted-mnist", **mnist)
    assert len(list(mnist["cache_dir"].iterdir())) == 2
    write(tmp_path, "cifar10")
    load_stream(
        "five-datasets",
        num_tasks=2,
        data_dirs=[*mnist["data_dirs"], tmp_path],
        cache_dir=mnist["cache_dir"],
    )
    assert len(list(mnist["cache_dir"].glob("mnist-*"))) == 4
    labels = (list(range(10)) * TRAIN)[::-1], list(range(10)) * (TEST + 1)
    write(tmp_path / "other", "mnist", labels)
    other = load_stream(
        "rotated-mnist", data_dirs=[tmp_path / "other"], cache_dir=mnist["cache_dir"]
    )
    assert len(other.tasks[0].test) == 10 * (TEST + 1)


@pytest.mark.parametrize("file", ["images.npy", "labels.npy"])
@pytest.mark.parametrize("harm", [damage, pathlib.Path.unlink, lambda path: path.write_bytes(b"")])
def test_damaged_cache_is_rebuilt(mnist, capsys, file, harm):
    load_stream("rotated-mnist", **mnist)
    (entry,) = mnist["cache_dir"].glob("mnist-*-train-*")
    harm(entry / file)
    capsys.readouterr()
    stream = load_stream("rotated-mnist", **mnist)
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 2
    assert "is damaged" in messages[0]
    assert stream.tasks[0].train.take(np.arange(50))[0].max() > 0
    load_stream("rotated-mnist", **mnist)
    assert capsys.readouterr().err == ""
    assert len(list(mnist["cache_dir"].iterdir())) == 2


def test_leftovers_are_no_cache(mnist, monkeypatch):
    """Whoever fails half way leaves nothing; whoever is killed leaves what nobody opens."""
    blocks = cache.prepared.blocks

    def interrupted(*arguments):
        yield next(blocks(*arguments))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache.prepared, "blocks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load_stream("rotated-mnist", **mnist)
    assert not list(mnist["cache_dir"].iterdir())
    load_stream("rotated-mnist", **mnist)
    (entry,) = mnist["cache_dir"].glob("mnist-*-train-*")
    entry.rename(entry.with_name(f".{entry.name}-killed"))
    damage(entry.with_name(f".{entry.name}-killed") / "images.npy")
    assert len(load_stream("rotated-mnist", **mnist).tasks[0].train) == 50


def _load(arguments) -> int:
    return int(load_stream("rotated-mnist", **arguments).tasks[0].train.x.sum())


def test_processes_race(mnist):
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=context) as pool:
        sums = list(pool.map(_load, [mnist] * 3))
    assert len(set(sums)) == 1
    assert len(list(mnist["cache_dir"].iterdir())) == 2


def test_losing_the_race(mnist, monkeypatch):
    """The entry appears while this process decodes: both arrays are good, one entry stays."""
    blocks = cache.prepared.blocks
    rivals = []

    def slow(*arguments):
        monkeypatch.setattr(cache.prepared, "blocks", blocks)
        rivals.append(load_stream("rotated-mnist", **mnist))
        yield from blocks(*arguments)

    monkeypatch.setattr(cache.prepared, "blocks", slow)
    stream = load_stream("rotated-mnist", **mnist)
    np.testing.assert_array_equal(stream.tasks[0].train.x, rivals[0].tasks[0].train.x)
    assert len(list(mnist["cache_dir"].iterdir())) == 2


def test_cache_that_cannot_be_written(mnist, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Cannot keep decoded images .* TAG_OPTAX_CACHE"):
        load_stream("rotated-mnist", data_dirs=mnist["data_dirs"], cache_dir=tmp_path / "file")


def test_reading_imports_no_tensorflow(mnist):
    """And leaves warnings as they are."""
    script = (
        "import sys, warnings\n"
        "from train.streams import STREAMS\n"
        f"arguments = dict(data_dirs=[{str(mnist['data_dirs'][0])!r}],"
        f" cache_dir={str(mnist['cache_dir'])!r})\n"
        "STREAMS['rotated-mnist'].open(**arguments)\n"
        "assert 'tensorflow' not in sys.modules\n"
        "assert not any('Bomb' in str(each[2]) for each in warnings.filters)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.splitlines() == [
        "decoding mnist train: 50 images, once",
        "decoding mnist test: 20 images, once",
    ]
