"""Methods by name. A new one is a module beside these and a line in METHODS: see README.md here."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # A config checks its method's name here, and so must be able to import this.
    from train.methods.base import Method
    from train.run.config import Config
    from train.streams.types import Stream

METHODS = {
    "naive": "naive.Naive",
    "ewc": "ewc.EWC",
    "a-gem": "agem.AGEM",
    "er": "er.ER",
    "ogd": "ogd.OGD",
    "multitask": "multitask.Multitask",
}


def make(config: "Config", stream: "Stream") -> "Method":
    """The method of a config; UserError where the stream lacks what it needs."""
    module, name = METHODS[config.method].split(".")
    return getattr(importlib.import_module(f"train.methods.{module}"), name)(config, stream)
