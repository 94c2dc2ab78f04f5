"""The networks: what a `Model` is, how any library's module becomes one, and those with a name.

`model` holds the type and its adapters, `nets` the named networks and their settings, `pretrained`
weights as named arrays. It may import `train.settings` and `train.errors` alone.
"""

from train.models.model import (
    Model,
    as_model,
    from_equinox,
    from_linen,
    from_nnx,
    with_compute_dtype,
)
from train.models.nets import MODELS
from train.models.pretrained import from_named_weights, named_weights

__all__ = [
    "MODELS",
    "Model",
    "as_model",
    "from_equinox",
    "from_linen",
    "from_named_weights",
    "from_nnx",
    "named_weights",
    "with_compute_dtype",
]
