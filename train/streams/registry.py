"""The streams by name, and the data sets they are made of."""

from train.errors import UserError, nearest
from train.streams import plans
from train.streams.specs import DataSet, StreamSpec

_NOT_MNIST = "notMNIST_small.tar.gz (from http://yaroslavvb.com/upload/notMNIST/)"
_MINI_IMAGENET = (
    "mini_imagenet/ with a folder of images for each of the 100 classes (all in one folder, or "
    "below train/ and val/), or mini-imagenet-cache-train.pkl, -val.pkl and -test.pkl"
)

DATA_SETS = {
    data_set.name: data_set
    for data_set in (
        DataSet("cifar100", 100, (50_000, 10_000)),
        DataSet("mini_imagenet", 100, (48_000, 12_000), manual=_MINI_IMAGENET),
        DataSet("caltech_birds2011", 200, (5_994, 5_794)),
        DataSet("cifar10", 10, (50_000, 10_000)),
        DataSet("mnist", 10, (60_000, 10_000)),
        DataSet("svhn_cropped", 10, (73_257, 26_032)),
        DataSet("not_mnist", 10, (16_854, 1_870), manual=_NOT_MNIST),
        DataSet("fashion_mnist", 10, (60_000, 10_000)),
        DataSet("digits", 10, (1_438, 359), embedded=True),
    )
}

STREAMS = {
    spec.name: spec
    for spec in (
        StreamSpec(
            name="split-cifar100",
            summary="the 100 classes of CIFAR-100, 5 a task",
            data_sets=("cifar100",),
            plan=plans.split_classes,
            default_tasks=20,
            classes_per_task=5,
            image_shape=(32, 32, 3),
        ),
        StreamSpec(
            name="split-mini-imagenet",
            summary="the 100 classes of miniImageNet, 5 a task",
            data_sets=("mini_imagenet",),
            plan=plans.split_classes,
            default_tasks=20,
            classes_per_task=5,
            image_shape=(84, 84, 3),
            scale=2 / 255,
            offset=-1.0,
        ),
        StreamSpec(
            name="split-cub",
            summary="the 200 birds of CUB-200-2011, 10 a task",
            data_sets=("caltech_birds2011",),
            plan=plans.split_classes,
            default_tasks=20,
            classes_per_task=10,
            image_shape=(224, 224, 3),
            scale=2 / 255,
            offset=-1.0,
        ),
        StreamSpec(
            name="five-datasets",
            summary="CIFAR-10, MNIST, SVHN, notMNIST and Fashion-MNIST, one after the other",
            data_sets=("cifar10", "mnist", "svhn_cropped", "not_mnist", "fashion_mnist"),
            plan=plans.data_set_each,
            default_tasks=5,
            classes_per_task=10,
            image_shape=(32, 32, 3),
        ),
        StreamSpec(
            name="rotated-mnist",
            summary="MNIST turned by 30 degrees more with every task",
            data_sets=("mnist",),
            plan=plans.rotations,
            default_tasks=10,
            classes_per_task=10,
            image_shape=(28, 28, 1),
            same_classes=True,
        ),
        StreamSpec(
            name="permuted-mnist",
            summary="MNIST with its pixels in another fixed order in every task after the first",
            data_sets=("mnist",),
            plan=plans.permutations,
            default_tasks=10,
            classes_per_task=10,
            image_shape=(28, 28, 1),
            same_classes=True,
        ),
        StreamSpec(
            name="rotated-digits",
            summary="scikit-learn's 1797 digits turned by 30 degrees a task; needs no download",
            data_sets=("digits",),
            plan=plans.rotations,
            default_tasks=10,
            classes_per_task=10,
            image_shape=(16, 16, 1),
            same_classes=True,
        ),
    )
}


def stream_spec(name: str) -> StreamSpec:
    """The entry of this name, or a `UserError` that knows the near misses.

    >>> stream_spec("rotated-mnist").data_sets
    ('mnist',)
    >>> stream_spec("rotated-mist")
    Traceback (most recent call last):
    train.errors.UserError: There is no stream "rotated-mist". Did you mean rotated-mnist? ...
    """
    if name not in STREAMS:
        raise UserError(f'There is no stream "{name}". {nearest(name, STREAMS)}')
    return STREAMS[name]
