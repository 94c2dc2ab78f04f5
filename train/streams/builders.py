"""TFDS builders of the two data sets that TFDS lacks, fed from a manual directory.

They hand TFDS encoded images, never arrays: so preparing them needs no TensorFlow.
"""

import gzip
import pathlib
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, ClassVar, TypeAlias

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
NUM_CLASSES, SIDE = 100, 84
_SUFFIXES = {".jpg", ".jpeg", ".png"}

Classes: TypeAlias = Mapping[str, Sequence[pathlib.Path] | Sequence[np.ndarray]]
"""The images of each class, as files or as uint8[84, 84, 3]."""
Encoded: TypeAlias = Iterator[tuple[str, dict[str, Any]]]


class _Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """What the two have in common."""

    VERSION = tfds.core.Version("1.0.0")
    url_infos = None  # Nothing is downloaded, so there are no checksums to look for.
    about: ClassVar[str]
    homepage: ClassVar[str]
    shape: ClassVar[tuple[int, int, int]]

    def _info(self) -> tfds.core.DatasetInfo:
        image = tfds.features.Image(shape=self.shape)
        label = tfds.features.ClassLabel(num_classes=DATA_SETS[self.name].num_classes)
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.about,
            homepage=self.homepage,
            features=tfds.features.FeaturesDict({"image": image, "label": label}),
            supervised_keys=("image", "label"),
            metadata=tfds.core.MetadataDict(unreadable=0),
        )


class NotMnist(_Builder):
    """The letters of `notMNIST_small.tar.gz`, 28x28 and grey; a tenth of each is the test split."""

    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        f"Put into the manual directory: {DATA_SETS['not_mnist'].manual}."
    )
    about = "The letters A to J in many fonts, as a harder MNIST."
    homepage = "http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html"
    shape = (28, 28, 1)

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        letters, unreadable = read_archive(pathlib.Path(dl_manager.manual_dir) / ARCHIVE)
        if unreadable:
            print(f"not_mnist: skipped {unreadable} unreadable images", file=sys.stderr)
        metadata: Any = self.info.metadata
        metadata["unreadable"] = unreadable
        features: Any = self.info.features
        features["label"].names = list(LETTERS)
        # In the order of their names, so that the order in the archive does not matter.
        keys = sorted(letters)
        test = spaced(np.array([letter for letter, _ in keys]), 0.1)
        return {
            split: self._generate_examples({key: letters[key] for key in compress(keys, part)})
            for split, part in (("train", ~test), ("test", test))
        }

    def _generate_examples(self, letters: Mapping[tuple[str, str], bytes]) -> Encoded:
        for (letter, name), content in letters.items():
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


class MiniImagenet(_Builder):
    """100 classes of 84x84 images, from class folders or the three pickles; all of them in both
    splits: 480 images to learn from and 120 to test a class."""

    MANUAL_DOWNLOAD_INSTRUCTIONS = f"Put into the manual directory: {DATA_SETS[FOLDER].manual}."
    about = "100 classes of ImageNet at 84x84, as in Vinyals et al., 2016."
    homepage = "https://arxiv.org/abs/1606.04080"
    shape = (SIDE, SIDE, 3)

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        splits = read_classes(pathlib.Path(dl_manager.manual_dir))
        features: Any = self.info.features
        features["label"].names = list(splits["train"])
        return {split: self._generate_examples(classes) for split, classes in splits.items()}

    def _generate_examples(self, classes: Classes) -> Encoded:
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


def read_classes(manual_dir: pathlib.Path) -> dict[str, Classes]:
    """The 100 classes in order, in "train" and in "test", from whichever layout is there."""
    root = manual_dir / FOLDER if (manual_dir / FOLDER).is_dir() else manual_dir
    pickles = [root / f"mini-imagenet-cache-{part}.pkl" for part in PARTS]
    if any(path.exists() for path in pickles):
        parts = [_pickled(path) for path in pickles]
    else:
        parts = [_folders(root / part) for part in (PARTS if (root / "train").is_dir() else [""])]
        parts = [part for part in parts if part]
    # Two parts of the same classes are the splits; otherwise each class is split.
    if len(parts) == 2 and set(parts[0]) == set(parts[1]):
        train, test = parts[0], {name: parts[1][name] for name in parts[0]}
    else:
        classes = {name: images for part in parts for name, images in part.items()}
        if len(classes) < sum(map(len, parts)):
            raise UserError(
                "train/, val/ and test/ of miniImageNet share some of their classes. Either two of "
                "them hold the same classes, or each class is in one of them only."
            )
        train, test = {}, {}
        for name, images in classes.items():
            held_out = spaced(np.zeros(len(images), int), 0.2)
            train[name] = list(compress(images, ~held_out))
            test[name] = list(compress(images, held_out))
    if len(train) != NUM_CLASSES:
        raise UserError(
            f"{root} has {len(train)} classes of images instead of {NUM_CLASSES}. "
            f"{MiniImagenet.MANUAL_DOWNLOAD_INSTRUCTIONS}"
        )
    return {"train": train, "test": test}


def _folders(root: pathlib.Path) -> Classes:
    """The image files of each class folder, both in the order of their names."""
    folders = sorted(root.iterdir()) if root.is_dir() else []
    found = {
        folder.name: sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
        for folder in folders
        if folder.is_dir()
    }
    return {name: files for name, files in found.items() if files}


def _pickled(path: pathlib.Path) -> Classes:
    if not path.is_file():
        raise UserError(f"There is no {path}: all three pickles are needed.")
    content = load_arrays(path)
    found: Any = content if isinstance(content, dict) else {}
    images, members = found.get("image_data"), found.get("class_dict")
    fits = isinstance(images, np.ndarray) and images.shape[1:] == (SIDE, SIDE, 3)
    if not fits or images.dtype != np.uint8 or not isinstance(members, dict):
        raise UserError(f"{path} lacks image_data (uint8[n, 84, 84, 3]) or class_dict.")
    classes = {}
    for name, indices in members.items():
        rows = np.asarray(indices)
        if rows.dtype.kind not in "iu" or not np.all((rows >= 0) & (rows < len(images))):
            raise UserError(f"{path}: class {name} names images that are not there.")
        classes[str(name)] = list(images[rows])
    return classes


BUILDERS = {builder.name: builder for builder in (MiniImagenet, NotMnist)}
