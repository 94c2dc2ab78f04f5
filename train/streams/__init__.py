"""Streams of tasks: which there are, where their data come from, and how to read them."""

from train.streams.load import load_stream
from train.streams.preparation import prepare
from train.streams.registry import STREAMS
from train.streams.specs import StreamSpec
from train.streams.status import DataStatus, data_status
from train.streams.types import Examples, Stream, Task

__all__ = [
    "STREAMS",
    "DataStatus",
    "Examples",
    "Stream",
    "StreamSpec",
    "Task",
    "data_status",
    "load_stream",
    "prepare",
]
