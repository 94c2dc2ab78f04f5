"""notMNIST (small): the letters A to J in many fonts, from `notMNIST_small.tar.gz`."""

import gzip
import pathlib
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from train.errors import UserError
from train.streams.data_sets import DATA_SETS
from train.streams.decode import encoded
from train.streams.stream import spaced

ARCHIVE = "notMNIST_small.tar.gz"
LETTERS = "ABCDEFGHIJ"
TEST_FRACTION = 0.1

# Exactly one folder above the letter: neither absolute, nor upwards, nor a hidden file.
_MEMBER = re.compile(r"(?:\./)?[^/.][^/]*/([A-J])/([^/.][^/]*\.png)")
_LARGEST = 1 << 20


class NotMnist(tfds.core.GeneratorBasedBuilder):
    """28x28 grey images of ten letters; a tenth of every letter is the test split."""

    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        f"Put into the manual directory: {DATA_SETS['not_mnist'].manual}."
    )
    url_infos = None  # Nothing is downloaded, so there are no checksums to look for.

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="The letters A to J in many fonts, as a harder MNIST.",
            homepage="http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(28, 28, 1)),
                    "label": tfds.features.ClassLabel(names=list(LETTERS)),
                }
            ),
            supervised_keys=("image", "label"),
            metadata=tfds.core.MetadataDict(unreadable=0),
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        letters, unreadable = read_archive(pathlib.Path(dl_manager.manual_dir) / ARCHIVE)
        if unreadable:
            print(f"not_mnist: skipped {unreadable} unreadable images", file=sys.stderr)
        metadata: Any = self.info.metadata
        metadata["unreadable"] = unreadable
        # In the order of their names, so that the order in the archive does not matter.
        keys = sorted(letters)
        test = spaced(np.array([LETTERS.index(letter) for letter, _ in keys]), TEST_FRACTION)
        parts = {"train": ~test, "test": test}
        return {
            split: self._generate_examples(
                {keys[k]: letters[keys[k]] for k in np.flatnonzero(part)}
            )
            for split, part in parts.items()
        }

    def _generate_examples(
        self, letters: Mapping[tuple[str, str], bytes]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
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
