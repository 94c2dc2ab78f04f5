"""TFDS builders of the two data sets that TFDS lacks, fed from a manual directory.

They hand TFDS encoded images, never arrays: so preparing them needs no TensorFlow.
"""

import gzip
import pathlib
import re
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow_datasets as tfds

from train.errors import UserError
from train.streams.data_sets import DATA_SETS
from train.streams.pickles import load_arrays
from train.streams.prepared import encoded, png
from train.streams.stream import spaced

ARCHIVE = "notMNIST_small.tar.gz"
LETTERS = "ABCDEFGHIJ"
# Exactly one folder above the letter: neither absolute, nor upwards, nor a hidden file.
_MEMBER = re.compile(r"(?:\./)?[^/.][^/]*/([A-J])/([^/.][^/]*\.png)")
_LARGEST = 1 << 20

FOLDER = "mini_imagenet"
PARTS = ("train", "val", "test")
NUM_CLASSES = 100
SIDE = 84
_SUFFIXES = {".jpg", ".jpeg", ".png"}

Images: TypeAlias = Sequence[pathlib.Path] | Sequence[np.ndarray] | np.ndarray
Encoded: TypeAlias = Iterator[tuple[str, dict[str, Any]]]


def _described(
    builder: Any, about: str, homepage: str, shape: tuple[int, ...], label: tfds.features.ClassLabel
) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
        builder=builder,
        description=about,
        homepage=homepage,
        features=tfds.features.FeaturesDict(
            {"image": tfds.features.Image(shape=shape), "label": label}
        ),
        supervised_keys=("image", "label"),
        metadata=tfds.core.MetadataDict(unreadable=0),
    )


class NotMnist(tfds.core.GeneratorBasedBuilder):
    """The letters of `notMNIST_small.tar.gz`, 28x28 and grey; a tenth of each is the test split."""

    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        f"Put into the manual directory: {DATA_SETS['not_mnist'].manual}."
    )
    url_infos = None  # Nothing is downloaded, so there are no checksums to look for.

    def _info(self) -> tfds.core.DatasetInfo:
        return _described(
            self,
            "The letters A to J in many fonts, as a harder MNIST.",
            "http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html",
            (28, 28, 1),
            tfds.features.ClassLabel(names=list(LETTERS)),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        letters, unreadable = read_archive(pathlib.Path(dl_manager.manual_dir) / ARCHIVE)
        if unreadable:
            print(f"not_mnist: skipped {unreadable} unreadable images", file=sys.stderr)
        metadata: Any = self.info.metadata
        metadata["unreadable"] = unreadable
        # In the order of their names, so that the order in the archive does not matter.
        keys = sorted(letters)
        test = spaced(np.array([LETTERS.index(letter) for letter, _ in keys]), 0.1)
        return {
            split: self._generate_examples(
                (keys[k], letters[keys[k]]) for k in np.flatnonzero(part)
            )
            for split, part in (("train", ~test), ("test", test))
        }

    def _generate_examples(self, letters: Iterable[tuple[tuple[str, str], bytes]]) -> Encoded:
        for (letter, name), content in letters:
            yield f"{letter}/{name}", {"image": content, "label": letter}


def read_archive(path: pathlib.Path) -> tuple[dict[tuple[str, str], bytes], int]:
    """The images as {(letter, file name): PNG}, and how many could not be read.

    Nothing is unpacked to disk. Links, folders and whatever is not at TOP/LETTER/NAME.png are
    passed over.
    """
    if not path.is_file():
        raise UserError(f"There is no {path}. {NotMnist.MANUAL_DOWNLOAD_INSTRUCTIONS}")
    letters, unreadable = {}, 0
    try:
        # gzip is opened by itself because tarfile takes a download that was cut short for whole.
        with gzip.open(path) as unzipped, tarfile.open(fileobj=unzipped, mode="r|") as archive:
            for member in archive:
                match = _MEMBER.fullmatch(member.name)
                file = archive.extractfile(member) if match and member.isreg() else None
                if match is None or file is None or member.size > _LARGEST:
                    continue
                image = encoded(file.read(), (28, 28), "L")
                if image is None:
                    unreadable += 1
                else:
                    letters[match[1], match[2]] = image
            while unzipped.read(_LARGEST):  # To the end, where the checksum is.
                pass
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path} is no complete tar.gz archive: {error}.") from error
    absent = sorted(set(LETTERS) - {letter for letter, _ in letters})
    if absent:
        raise UserError(f"{path} has no images of {', '.join(absent)}: is it notMNIST_small?")
    return letters, unreadable


class ImageClass(NamedTuple):
    """One class of miniImageNet, its images as files or as uint8[n, 84, 84, 3]."""

    name: str
    train: Images
    test: Images


class MiniImagenet(tfds.core.GeneratorBasedBuilder):
    """100 classes of 84x84 images, from class folders or the three pickles; all of them in both
    splits: 480 images to learn from and 120 to test a class."""

    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"Put into the manual directory: {DATA_SETS[FOLDER].manual}."
    url_infos = None

    def _info(self) -> tfds.core.DatasetInfo:
        return _described(
            self,
            "100 classes of ImageNet at 84x84, as in Vinyals et al., 2016.",
            "https://arxiv.org/abs/1606.04080",
            (SIDE, SIDE, 3),
            tfds.features.ClassLabel(num_classes=NUM_CLASSES),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        classes = read_classes(pathlib.Path(dl_manager.manual_dir))
        features: Any = self.info.features
        features["label"].names = [one.name for one in classes]
        return {
            "train": self._generate_examples({one.name: one.train for one in classes}),
            "test": self._generate_examples({one.name: one.test for one in classes}),
        }

    def _generate_examples(self, classes: Mapping[str, Images]) -> Encoded:
        metadata: Any = self.info.metadata
        for name, images in classes.items():
            for position, image in enumerate(images):
                if isinstance(image, np.ndarray):
                    content = png(image)
                else:
                    content = encoded(image.read_bytes(), (SIDE, SIDE), "RGB")
                if content is None:
                    print(f"{FOLDER}: skipped {image}, which is unreadable", file=sys.stderr)
                    metadata["unreadable"] += 1
                else:
                    yield f"{name}/{position}", {"image": content, "label": name}


def read_classes(manual_dir: pathlib.Path) -> list[ImageClass]:
    """The 100 classes in order, from whichever layout is there."""
    root = manual_dir / FOLDER if (manual_dir / FOLDER).is_dir() else manual_dir
    pickles = [root / f"mini-imagenet-cache-{part}.pkl" for part in PARTS]
    if any(path.exists() for path in pickles):
        classes = _from_pickles(pickles)
    elif (root / "train").is_dir():
        classes = _from_parts({part: _folders(root / part) for part in PARTS})
    else:
        classes = [_split(name, files) for name, files in _folders(root).items()]
    if len(classes) != NUM_CLASSES:
        raise UserError(
            f"{root} has {len(classes)} classes of images instead of {NUM_CLASSES}. "
            f"{MiniImagenet.MANUAL_DOWNLOAD_INSTRUCTIONS}"
        )
    return classes


def _folders(root: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """The image files of each class folder, both in the order of their names."""
    if not root.is_dir():
        return {}
    folders = {
        folder.name: sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
        for folder in sorted(root.iterdir())
        if folder.is_dir()
    }
    return {name: files for name, files in folders.items() if files}


def _from_parts(parts: dict[str, dict[str, list[pathlib.Path]]]) -> list[ImageClass]:
    """train/ and val/ are the splits where they share their classes; else all classes are split."""
    train, *others = [part for part in parts.values() if part]
    if len(others) == 1 and set(train) == set(others[0]):
        return [ImageClass(name, train[name], others[0][name]) for name in train]
    names = [name for part in parts.values() for name in part]
    if len(set(names)) < len(names):
        raise UserError(
            "train/, val/ and test/ of miniImageNet share some of their classes. Either two of "
            "them hold the same classes, or each class is in one of them only."
        )
    return [_split(name, files) for part in parts.values() for name, files in part.items()]


def _from_pickles(paths: Sequence[pathlib.Path]) -> list[ImageClass]:
    classes = []
    for path in paths:
        if not path.is_file():
            raise UserError(f"There is no {path}: all three pickles are needed.")
        content = load_arrays(path)
        images = content.get("image_data") if isinstance(content, dict) else None
        members = content.get("class_dict") if isinstance(content, dict) else None
        if not (
            isinstance(images, np.ndarray)
            and images.dtype == np.uint8
            and images.shape[1:] == (SIDE, SIDE, 3)
            and isinstance(members, dict)
        ):
            raise UserError(f"{path} lacks image_data (uint8[n, 84, 84, 3]) or class_dict.")
        for name, indices in members.items():
            rows = np.asarray(indices)
            if rows.dtype.kind not in "iu" or not np.all((rows >= 0) & (rows < len(images))):
                raise UserError(f"{path}: class {name} names images that are not there.")
            classes.append(_split(str(name), images[rows]))
    return classes


def _split(name: str, images: list[pathlib.Path] | np.ndarray) -> ImageClass:
    test = spaced(np.zeros(len(images), int), 0.2)
    return ImageClass(name, *([images[k] for k in np.flatnonzero(part)] for part in (~test, test)))


BUILDERS = {builder.name: builder for builder in (MiniImagenet, NotMnist)}
