"""Streams of tasks: what they are, which are built in, and where the data of these come from.

    stream      Stream, Task and Examples, of a user's arrays or of ours
    named       the built-in streams, and whatever else a user may give for one
    data_sets, prepared, cache, decode, transforms      where their images come from
    preparation, builders                               `python -m train prepare` and `data`

It imports `train.settings`, `train.errors` and `train.files`, and nothing else of `train`.
"""

from train.streams.named import (
    STREAMS,
    NamedStream,
    as_stream,
    load_stream,
    named_stream,
    prepare_advice,
)
from train.streams.preparation import DataStatus, data_status, prepare
from train.streams.stream import Examples, Stream, Task

__all__ = [
    "STREAMS",
    "DataStatus",
    "Examples",
    "NamedStream",
    "Stream",
    "Task",
    "as_stream",
    "data_status",
    "load_stream",
    "named_stream",
    "prepare",
    "prepare_advice",
]
