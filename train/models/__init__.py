"""What a network is, how any library's module becomes one, and those that have a name."""

from train.models.model import Model, as_model, from_equinox, from_linen, with_compute_dtype
from train.models.nets import MODELS
from train.models.pretrained import named_weights

__all__ = [
    "MODELS",
    "Model",
    "as_model",
    "from_equinox",
    "from_linen",
    "named_weights",
    "with_compute_dtype",
]
