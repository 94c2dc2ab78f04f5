"""Learn one task after another with TAG and its baselines, and measure what is remembered.

    result = train.fit(stream, network, optimizer)      # from arrays, any network, any optimizer
    result = train.load("runs/mine/seed-1")             # what was trained, in another process

README.md in this folder shows how the package is built.
"""

from train.launch.fit import fit
from train.methods import Method
from train.models import Model, from_equinox, from_linen
from train.run.result import RunResult, load
from train.streams import Examples, Stream, Task

__all__ = [
    "Examples",
    "Method",
    "Model",
    "RunResult",
    "Stream",
    "Task",
    "fit",
    "from_equinox",
    "from_linen",
    "load",
]
