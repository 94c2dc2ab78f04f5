"""Streams of tasks: what they are, which are built in, and where the data of these come from."""

from train.streams.named import STREAMS, as_stream, prepare_advice
from train.streams.preparation import DataStatus, data_status, prepare
from train.streams.stream import Examples, Stream, Task

__all__ = [
    "STREAMS",
    "DataStatus",
    "Examples",
    "Stream",
    "Task",
    "as_stream",
    "data_status",
    "prepare",
    "prepare_advice",
]
