"""TFDS builders of the two data sets that TFDS lacks, fed from a manual directory.

They hand TFDS encoded images, never arrays: so preparing them needs no TensorFlow.
"""

from train.streams.builders.mini_imagenet import MiniImagenet
from train.streams.builders.not_mnist import NotMnist

BUILDERS = {builder.name: builder for builder in (MiniImagenet, NotMnist)}

__all__ = ["BUILDERS", "MiniImagenet", "NotMnist"]
