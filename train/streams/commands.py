"""The command that prepares a missing data set, as it is printed."""

from collections.abc import Sequence

from train.streams.registry import DATA_SETS
from train.streams.specs import StreamSpec


def prepare_command(spec: StreamSpec, data_sets: Sequence[str]) -> str:
    """What to type.

    >>> from train.streams.registry import STREAMS
    >>> prepare_command(STREAMS["rotated-mnist"], ["mnist"])
    'python -m train prepare rotated-mnist'
    >>> prepare_command(STREAMS["five-datasets"], ["mnist", "not_mnist"])
    'python -m train prepare five-datasets --manual-dir DIR'
    """
    manual = any(DATA_SETS[name].manual for name in data_sets)
    return f"python -m train prepare {spec.name}{' --manual-dir DIR' if manual else ''}"


def prepare_advice(spec: StreamSpec, data_sets: Sequence[str]) -> str:
    """What to type, and what to bring, as a sentence.

    >>> from train.streams.registry import STREAMS
    >>> prepare_advice(STREAMS["five-datasets"], ["not_mnist"])
    'Prepare with: python -m train prepare five-datasets --manual-dir DIR, where DIR holds
    notMNIST_small.tar.gz (from http://yaroslavvb.com/upload/notMNIST/)'
    """
    advice = f"Prepare with: {prepare_command(spec, data_sets)}"
    manual = [DATA_SETS[name].manual for name in data_sets if DATA_SETS[name].manual]
    return f"{advice}, where DIR holds {' and '.join(manual)}" if manual else advice
