"""miniImageNet: 100 classes of 600 images, 84x84, from class folders or the three pickles."""

import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow_datasets as tfds

from train.errors import UserError
from train.streams.builders.pickles import load_arrays
from train.streams.data_sets import DATA_SETS
from train.streams.decode import encoded, png
from train.streams.stream import spaced

FOLDER = "mini_imagenet"
PARTS = ("train", "val", "test")
NUM_CLASSES = 100
TEST_FRACTION = 0.2
SIDE = 84
_SUFFIXES = {".jpg", ".jpeg", ".png"}

Images: TypeAlias = Sequence[pathlib.Path] | Sequence[np.ndarray] | np.ndarray


@dataclasses.dataclass(frozen=True)
class ImageClass:
    """One class, its images as files or as uint8[n, 84, 84, 3]."""

    name: str
    train: Images
    test: Images


class MiniImagenet(tfds.core.GeneratorBasedBuilder):
    """100 classes, all of them in both splits: 480 images to learn from and 120 to test a class."""

    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = f"Put into the manual directory: {DATA_SETS[FOLDER].manual}."
    url_infos = None  # Nothing is downloaded, so there are no checksums to look for.

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="100 classes of ImageNet at 84x84, as in Vinyals et al., 2016.",
            homepage="https://arxiv.org/abs/1606.04080",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(SIDE, SIDE, 3)),
                    "label": tfds.features.ClassLabel(num_classes=NUM_CLASSES),
                }
            ),
            supervised_keys=("image", "label"),
            metadata=tfds.core.MetadataDict(unreadable=0),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        classes = read_classes(pathlib.Path(dl_manager.manual_dir))
        features: Any = self.info.features
        features["label"].names = [one.name for one in classes]
        return {
            "train": self._generate_examples({one.name: one.train for one in classes}),
            "test": self._generate_examples({one.name: one.test for one in classes}),
        }

    def _generate_examples(
        self, classes: Mapping[str, Images]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
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
    test = spaced(np.zeros(len(images), int), TEST_FRACTION)
    return ImageClass(
        name,
        train=[images[k] for k in np.flatnonzero(~test)],
        test=[images[k] for k in np.flatnonzero(test)],
    )
