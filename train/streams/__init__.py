"""Streams of tasks: what they are, which are built in, and where the data of these come from."""

from train.streams.named import STREAMS, as_stream
from train.streams.preparation import data_status, prepare
from train.streams.stream import Examples, Stream, Task

__all__ = ["STREAMS", "Examples", "Stream", "Task", "as_stream", "data_status", "prepare"]
