"""What is done against forgetting: one module a method. How to add one: README.md here."""

from train.methods.agem import AGEM
from train.methods.base import Gradient, Method, TrainState
from train.methods.er import ER
from train.methods.ewc import EWC
from train.methods.multitask import Multitask
from train.methods.ogd import OGD
from train.methods.problem import Batch, Problem

METHODS: dict[str, Method] = {
    "naive": Method(),
    "ewc": EWC(),
    "a-gem": AGEM(),
    "er": ER(),
    "ogd": OGD(),
    "multitask": Multitask(),
}

__all__ = ["METHODS", "Batch", "Gradient", "Method", "Problem", "TrainState"]
