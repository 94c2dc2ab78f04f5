"""`python -m train data`: every stream, where its data are looked for, and how to get them."""

import itertools
import pathlib

import rich.text

from train.cli.display import Display
from train.streams import STREAMS, DataStatus, data_status, prepare_advice


def list_data(data_dirs: tuple[pathlib.Path, ...], display: Display) -> None:
    found = data_status(data_dirs or None)
    looked_in = dict.fromkeys(str(path) for status in found for path in status.looked_in)
    display.say(f"Data are looked for in {', '.join(looked_in)}.")
    display.say("Choose other places with --data-dir or $TFDS_DATA_DIR.\n")
    for stream, group in itertools.groupby(found, key=lambda status: status.stream):
        statuses = list(group)
        spec = STREAMS[stream]
        display.console.print(rich.text.Text(stream, style="bold"), end="")
        display.say(f"  {spec.summary}")
        for status in statuses:
            display.say("  " + describe(status))
        missing = [status.data_set for status in statuses if not status.present]
        if missing:
            display.say(f"  {prepare_advice(spec, missing)}")


def describe(status: DataStatus) -> str:
    """One line on one data set.

    >>> describe(DataStatus("rotated-mnist", "mnist", (), present=False))
    'missing  mnist'
    """
    if not status.present:
        as_it_is = f" (there, but as {status.file_format})" if status.found else ""
        return f"missing  {status.data_set}{as_it_is}"
    where = f" in {status.found}" if status.found else ", comes with scikit-learn"
    size = f", {_size(status.num_bytes)}" if status.num_bytes else ""
    version = f" {status.version}" if status.version else ""
    subset = ", a subset" if status.subset else ""
    return (
        f"present  {status.data_set}{version}: {status.num_train} + {status.num_test} "
        f"images{size}{subset}{where}"
    )


def _size(num_bytes: float) -> str:
    """
    >>> _size(2_500_000)
    '2.5 MB'
    """
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"
