"""Data that are damaged, odd or hostile: noticed, or read right; nothing run, nothing let out."""

import contextlib
import io
import json
import os
import pathlib
import pickle
import shutil
import struct
import tarfile
import tempfile
import tracemalloc
import warnings
import zlib

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from PIL import Image

from train.errors import UserError
from train.methods import METHODS
from train.models.pretrained import read_state_dict
from train.streams.builders import ARCHIVE, LETTERS, read_archive
from train.streams.pickles import load_arrays
from train.streams.prepared import decode_image, encoded

from ..train.tiny_data import Tiny, load_stream, write
from .commands import call, elsewhere, snapshot

pytestmark = pytest.mark.ci

SIZE = hypothesis.settings().max_examples


@pytest.fixture(scope="module")
def mnist(tmp_path_factory) -> pathlib.Path:
    """A small copy of MNIST, which no test may change."""
    directory = tmp_path_factory.mktemp("data")
    write(directory, "mnist")
    return directory


@contextlib.contextmanager
def copied(data: pathlib.Path):
    """A copy that a test may harm, and an empty cache: arguments of `load_stream`."""
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        path = pathlib.Path(name)
        shutil.copytree(data, path / "data")
        yield dict(data_dirs=[path / "data"], cache_dir=path / "cache")


def pixels(arguments) -> tuple[np.ndarray, ...]:
    task = load_stream("rotated-mnist", num_tasks=1, **arguments).tasks[0]
    return tuple(
        array for part in (task.train, task.test) for array in part.take(np.arange(len(part)))
    )


@st.composite
def harm(draw: st.DrawFn, content: bytes) -> bytes:
    position = draw(st.integers(0, len(content) - 1))
    if draw(st.booleans()):
        return content[:position]
    size = draw(st.sampled_from([1, 1, 16]))
    other = draw(st.binary(min_size=size, max_size=size))
    return content[:position] + other + content[position + size :]


# Prepared data.


@pytest.mark.parametrize("name", ["train.array", "dataset_info", "features"])
@hypothesis.settings(max_examples=SIZE)
@given(data=st.data())
def test_damaged_files_are_refused_or_read_right(mnist, name, data):
    with copied(mnist) as arguments:
        expected = pixels(dict(arguments, cache_dir=mnist / "cache"))
        (file,) = arguments["data_dirs"][0].glob(f"mnist/*/*{name}*")
        file.write_bytes(data.draw(harm(file.read_bytes())))
        try:
            found = pixels(arguments)
        except UserError:
            return
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("lengths", [["60"], ["-1"], ["0"], [1e400], ["25", "25"], []])
def test_a_count_that_is_none(mnist, lengths):
    with copied(mnist) as arguments:
        (file,) = arguments["data_dirs"][0].glob("mnist/*/dataset_info.json")
        info = json.loads(file.read_text())
        for split in info["splits"]:
            split["shardLengths"] = lengths
        file.write_text(json.dumps(info))
        with pytest.raises(UserError):
            pixels(arguments)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_missing_split(mnist, split):
    with copied(mnist) as arguments:
        (file,) = arguments["data_dirs"][0].glob("mnist/*/dataset_info.json")
        info = json.loads(file.read_text())
        info["splits"] = [each for each in info["splits"] if each["name"] != split]
        file.write_text(json.dumps(info))
        with pytest.raises(UserError, match=f"has no split {split}"):
            pixels(arguments)


def write_records(directory: pathlib.Path, images: list[bytes], labels: list[int]) -> None:
    """A data set called mnist with these encoded images in both of its splits."""

    class Given(Tiny, skip_registration=True):
        name = "mnist"

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(labels) for split in ("train", "test")}

        def _generate_examples(self, labels):
            for key, (image, label) in enumerate(zip(images, labels, strict=True)):
                yield key, {"image": image, "label": label}

    Given(data_dir=directory, file_format="array_record").download_and_prepare()


def image_file(mode: str, size: tuple[int, int] = (28, 28), kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that says it is this large, and holds next to nothing."""

    def chunk(name: bytes, content: bytes) -> bytes:
        end = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + end

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


NO_IMAGES = {
    "nothing": b"",
    "text": b"not an image",
    "half": image_file("L")[:40],
    "bomb": png_header(60_000, 60_000),
    "large": png_header(10_000, 10_000),  # Between Pillow's warning and its error.
    "no width": png_header(0, 5),
    "neither": png_header(0, 0),
}


@pytest.mark.parametrize("kind", NO_IMAGES)
def test_a_record_that_is_no_image(tmp_path, kind, capsys):
    write_records(tmp_path / "data", [image_file("L")] * 10 + [NO_IMAGES[kind]], [*range(10), 0])
    before = snapshot(tmp_path)
    with pytest.raises(
        UserError, match=r"mnist in .* cannot be read .* prepare the data set again"
    ):
        load_stream("rotated-mnist", data_dirs=[tmp_path / "data"], cache_dir=tmp_path / "cache")
    assert {k: v for k, v in snapshot(tmp_path).items() if k != "cache"} == before
    assert encoded(NO_IMAGES[kind], (28, 28), "L") is None


def test_a_warning_of_pillows_is_a_refusal(tmp_path):
    """Here and nowhere else: what the user does with warnings stays as it is."""
    large = image_file("1", (10_000, 10_000))
    write_records(tmp_path / "data", [image_file("L")] * 10 + [large], [*range(10), 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = list(warnings.filters)
        assert encoded(large, (28, 28), "L") is None
        with pytest.raises(UserError, match=r"cannot be read .* decompression bomb"):
            load_stream("rotated-mnist", data_dirs=[tmp_path / "data"], cache_dir=tmp_path / "no")
        assert warnings.filters == before


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("size", [(1, 1), (28, 28), (1, 400)])
@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3)])
def test_images_of_other_sizes_and_modes(mode, size, shape):
    image = decode_image(image_file(mode, size), shape)
    assert image.shape == shape
    assert image.dtype == np.uint8


@hypothesis.settings(max_examples=5 * SIZE)
@given(st.sampled_from(["png", "jpeg", "gif", "bmp", "tiff", "webp"]), st.data())
def test_damaged_images_are_skipped_or_whole(kind, data):
    """Pillow raises what it likes; a builder counts the image as unreadable."""
    content = data.draw(harm(image_file("RGB", kind=kind)))
    found = encoded(content, (28, 28), "L")
    if found is not None:
        assert decode_image(found, (28, 28, 1)).shape == (28, 28, 1)


# Tasks at the edge of what is one.


@pytest.mark.parametrize(
    "method", ["naive", *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS if m != "naive")]
)
def test_a_task_of_one_example_is_learned_to_its_end(method):
    """And a batch is larger than the task: mostly filling."""
    with elsewhere() as here:
        command = ["run", "--stream", "rotated-digits", "--method", method, "--optimizer", "sgd"]
        command += ["--num-tasks", "2", "--max-examples", "1", "--batch-size", "3"]
        command += ["--directions-per-task", "1"] * (method == "ogd")
        ended = call(*command)
        assert ended.code == 0, ended
        (file,) = here.glob("runs/**/matrices.json")
        last = json.loads(file.read_text())["accuracy"][-1]
        assert all(accuracy in (0.0, 1.0) for accuracy in last)


@pytest.mark.parametrize("label", [10, -1, 2**31, -(2**63)])
def test_labels_out_of_range(tmp_path, label):
    write_records(tmp_path / "data", [image_file("L")] * 11, [*range(10), label])
    with pytest.raises(UserError, match=rf"mnist train has the label {label}, outside"):
        load_stream("rotated-mnist", data_dirs=[tmp_path / "data"], cache_dir=tmp_path / "cache")


def test_an_empty_class(tmp_path):
    write_records(tmp_path / "data", [image_file("L")] * 9, [*range(9)])
    with pytest.raises(UserError, match="mnist has no train example of class 9"):
        load_stream("rotated-mnist", data_dirs=[tmp_path / "data"], cache_dir=tmp_path / "cache")


# The cache.


@hypothesis.settings(max_examples=SIZE)
@given(file=st.sampled_from(["images.npy", "labels.npy", "crc32"]), data=st.data())
def test_a_changed_cache_is_noticed(mnist, file, data):
    """One wrong byte anywhere: the entry is decoded again, and the stream is as it was."""
    with copied(mnist) as arguments:
        expected = pixels(arguments)
        (entry,) = pathlib.Path(arguments["cache_dir"]).glob("mnist-*-train-*")
        content = (entry / file).read_bytes()
        changed = data.draw(harm(content))
        (entry / file).write_bytes(changed)
        for one, other in zip(pixels(arguments), expected, strict=True):
            np.testing.assert_array_equal(one, other)
        # An .npy header may be written in several ways that mean the same.
        assert (entry / file).read_bytes() == content or file != "crc32"


@pytest.mark.parametrize("file", ["images.npy", "labels.npy"])
@pytest.mark.parametrize("harmed", [b"(\0", b"\0", b"(", b"'", b"9" * 9])
def test_a_header_that_numpy_stumbles_over(mnist, file, harmed):
    with copied(mnist) as arguments:
        expected = pixels(arguments)
        (entry,) = pathlib.Path(arguments["cache_dir"]).glob("mnist-*-train-*")
        content = (entry / file).read_bytes()
        end = content.index(b"}")
        (entry / file).write_bytes(content[:end] + harmed + content[end + len(harmed) :])
        np.testing.assert_array_equal(pixels(arguments)[0], expected[0])
        assert (entry / file).read_bytes() == content


@pytest.mark.parametrize(("file", "position"), [("images.npy", -1), ("labels.npy", -8)])
def test_one_flipped_value_is_noticed(mnist, capsys, file, position):
    with copied(mnist) as arguments:
        pixels(arguments)
        (entry,) = pathlib.Path(arguments["cache_dir"]).glob("mnist-*-train-*")
        content = bytearray((entry / file).read_bytes())
        content[position] ^= 1
        whole, harmed = (entry / file).read_bytes(), bytes(content)
        (entry / file).write_bytes(harmed)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            pixels(arguments)
        assert "is damaged (its checksum is another one); decoding again" in said.getvalue()
        assert (entry / file).read_bytes() == whole


# Archives.


def letters() -> dict[str, bytes]:
    return {f"top/{letter}/{k}.png": image_file("L") for letter in LETTERS for k in range(2)}


def member(name: str, content: bytes = b"", **fields) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


HOSTILE = {
    "upwards": member("../x/A/evil.png", image_file("L")),
    "upwards inside": member("top/../../A/evil.png", image_file("L")),
    "absolute": member("/A/evil.png", image_file("L")),
    "absolute deep": member("//tmp/A/evil.png", image_file("L")),
    "symlink": member("top/A/evil.png", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "symlink folder": member("top/A", type=tarfile.SYMTYPE, linkname="../.."),
    "hard link": member("top/A/evil.png", type=tarfile.LNKTYPE, linkname="top/A/0.png"),
    "hard link outside": member("top/A/evil.png", type=tarfile.LNKTYPE, linkname="../../x"),
    "device": member("top/A/evil.png", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    "pipe": member("top/A/evil.png", type=tarfile.FIFOTYPE),
    "folder": member("top/A/evil.png", type=tarfile.DIRTYPE),
    "backslash": member("..\\A\\evil.png", image_file("L")),
    "line": member("top/A/a\nb.png/evil.png", image_file("L")),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_members_stay_inside(tmp_path, kind):
    manual = tmp_path / "a" / "b" / "manual"
    manual.mkdir(parents=True)
    with tarfile.open(manual / ARCHIVE, "w:gz") as archive:
        for info, content in (*(member(*each) for each in letters().items()), HOSTILE[kind]):
            archive.addfile(info, io.BytesIO(content))
    before = snapshot(tmp_path)
    found, unreadable = read_archive(manual / ARCHIVE)
    assert (len(found), unreadable) == (20, 0)
    assert snapshot(tmp_path) == before


def test_an_archive_that_grows(tmp_path):
    """A large member is passed over without being held; many are read as a stream."""
    with tarfile.open(tmp_path / ARCHIVE, "w:gz", compresslevel=1) as archive:
        for info, content in (member(*each) for each in letters().items()):
            archive.addfile(info, io.BytesIO(content))
        info = tarfile.TarInfo("top/A/bomb.png")
        info.size = 64 << 20
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    tracemalloc.start()
    found, _ = read_archive(tmp_path / ARCHIVE)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 20
    assert most < 16 << 20


@hypothesis.settings(max_examples=SIZE)
@given(data=st.data())
def test_damaged_archives(data):
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / ARCHIVE
        with tarfile.open(path, "w:gz") as archive:
            for info, content in (member(*each) for each in letters().items()):
                archive.addfile(info, io.BytesIO(content))
        path.write_bytes(data.draw(harm(path.read_bytes())))
        with contextlib.suppress(UserError):
            assert len(read_archive(path)[0]) <= 20
        assert os.listdir(name) == [ARCHIVE]


# Pickles.


class Harmful:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


class Late:
    """Does its harm when its state is set."""

    def __reduce__(self):
        return dict, (), {"a": 1}, iter(()), iter([("key", Harmful(eval, "1"))])


def pickles() -> dict[str, bytes]:
    nested = Harmful(list, [Harmful(os.system, "touch hacked")])
    return {
        "nested": pickle.dumps({"image_data": [{"a": (nested,)}]}),
        "late": pickle.dumps(Late()),
        "import": pickle.dumps(Harmful(__import__, "this")),
        "exec": pickle.dumps(Harmful(exec, "open('hacked', 'w')")),
        "dotted": b"cbuiltins\ndict.__class__\n.",
        "numpy code": pickle.dumps(Harmful(np.fromfile, "/etc/passwd")),
        "object array": pickle.dumps(np.array([Harmful(os.getcwd)], object)),
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"Pid\n.",
        "memo": b"\x80\x02h\x05.",
        "huge": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.",
    }


@pytest.mark.parametrize("kind", pickles())
def test_pickles_run_nothing(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "harmful.pkl"
    path.write_bytes(pickles()[kind])
    with pytest.raises(UserError, match="is refused"):
        load_arrays(path)
    assert os.listdir(tmp_path) == ["harmful.pkl"]


class Reduced:
    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def test_a_forged_dtype_is_taken_for_what_it_is_called(tmp_path):
    """With other flags, numpy would take the bytes for a list of objects."""
    array = np.zeros(2, np.uint8).__reduce__()
    flags = 0x3F
    forged = Reduced(np.dtype, ("u1", False, True), (3, "|", None, None, None, -1, -1, flags))
    path = tmp_path / "forged.pkl"
    path.write_bytes(pickle.dumps(Reduced(*array[:2], (1, (2,), forged, False, b"\1\2"))))
    found = load_arrays(path)
    assert found.tolist() == [1, 2]
    assert found.dtype.flags == 0
    named = Reduced(np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 0))
    path.write_bytes(pickle.dumps(Reduced(*array[:2], (1, (1,), named, False, bytes(8)))))
    with pytest.raises(UserError, match="only numbers and text are allowed"):
        load_arrays(path)


@hypothesis.settings(max_examples=5 * SIZE)
@given(data=st.data())
def test_damaged_pickles(data):
    whole = pickle.dumps({"image_data": np.zeros((2, 2), np.uint8), "class_dict": {"a": [0, 1]}})
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "damaged.pkl"
        path.write_bytes(data.draw(harm(whole)))
        with contextlib.suppress(UserError):
            load_arrays(path)


@hypothesis.settings(max_examples=2 * SIZE)
@given(kind=st.sampled_from([".npz", ".safetensors", ".pth"]), data=st.data())
def test_damaged_weights(kind, data):
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3, np.float32))
    content = buffer.getvalue()
    if kind == ".safetensors":
        numpy_files = pytest.importorskip("safetensors.numpy")
        content = numpy_files.save({"a": np.zeros(3, np.float32)})
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / f"weights{kind}"
        path.write_bytes(data.draw(harm(content)))
        try:
            found = read_state_dict(path)
        except UserError:
            return
        assert all(isinstance(array, np.ndarray) for array in found.values())


def test_weights_that_are_a_pickle_run_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    harmful = pickle.dumps(Harmful(os.system, "touch hacked"))
    for suffix in (".npz", ".pth", ".pt", ".safetensors"):
        path = tmp_path / f"weights{suffix}"
        path.write_bytes(harmful)
        with pytest.raises(UserError):
            read_state_dict(path)
    np.savez(tmp_path / "inside.npz", a=np.array([Harmful(os.system, "touch hacked")], object))
    with pytest.raises(UserError, match="plain arrays"):
        read_state_dict(tmp_path / "inside.npz")
    assert not (tmp_path / "hacked").exists()
