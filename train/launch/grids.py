"""The values that a search tries for each method and optimizer.

The paper's appendix has a grid for each of its optimizers, and for EWC, A-GEM and ER with SGD. The
others are ours: the ablations of TAG-RMSProp take its grid (`tag-uniform` and `tag-age` without
b, which they do not use), and any other method takes the grid of its optimizer, together with the
fields that the paper searched for that method.
"""

_TAG_RMSPROP_RATES = (0.005, 0.001, 0.0005, 0.00025, 0.0001, 0.00005, 0.000025, 0.00001)
_TAG_B = (1.0, 3.0, 5.0, 7.0)

_OF_OPTIMIZER: dict[str, dict[str, tuple[float, ...]]] = {
    "sgd": {"learning_rate": (0.1, 0.05, 0.01, 0.001)},
    "adagrad": {"learning_rate": (0.01, 0.005, 0.001, 0.0005, 0.0001)},
    "rmsprop": {"learning_rate": (0.01, 0.005, 0.001, 0.0005, 0.0001, 0.00005, 0.00001)},
    "adam": {"learning_rate": (0.01, 0.005, 0.001, 0.0005, 0.0001)},
    "stable-sgd": {
        "learning_rate": (0.1, 0.05, 0.01),
        "decay": (0.9, 0.8, 0.7),
        "dropout": (0.0, 0.1, 0.25, 0.5),
    },
    "tag-rmsprop": {"learning_rate": _TAG_RMSPROP_RATES, "b": _TAG_B},
    "tag-adagrad": {"learning_rate": (0.005, 0.001, 0.0005, 0.00025, 0.0001), "b": _TAG_B},
    "tag-adam": {"learning_rate": (0.005, 0.001, 0.0005, 0.00025, 0.0001), "b": _TAG_B},
    # Ours.
    "tag-uniform": {"learning_rate": _TAG_RMSPROP_RATES},
    "tag-age": {"learning_rate": _TAG_RMSPROP_RATES},
    "tag-g": {"learning_rate": _TAG_RMSPROP_RATES, "b": _TAG_B},
    "tag-self": {"learning_rate": _TAG_RMSPROP_RATES, "b": _TAG_B},
}
# Beside the optimizer's. With SGD, the paper gives every method the rates of SGD.
_PAPER_LAMBDAS = (1.0, 10.0, 100.0)
# For the Fisher information of single examples, which is larger (see train/presets.py).
_LAMBDAS = (0.003, 0.03, 0.3)

_OUR_OPTIMIZERS = ("tag-uniform", "tag-age", "tag-g", "tag-self")
_PAPER_METHODS_WITH_SGD = ("ewc", "a-gem", "er")


def axes(method: str, optimizer: str, fisher: str = "examples") -> dict[str, tuple[float, ...]]:
    """The fields to vary, and their values.

    >>> axes("ewc", "sgd", fisher="batch")
    {'learning_rate': (0.1, 0.05, 0.01, 0.001), 'ewc_lambda': (1.0, 10.0, 100.0)}
    """
    found = dict(_OF_OPTIMIZER[optimizer])
    if method == "ewc":
        found["ewc_lambda"] = _PAPER_LAMBDAS if fisher == "batch" else _LAMBDAS
    return found


def is_papers(method: str, optimizer: str, fisher: str = "examples") -> bool:
    """Whether the paper has searched this grid.

    >>> is_papers("naive", "tag-adam"), is_papers("er", "sgd"), is_papers("er", "tag-adam")
    (True, True, False)
    """
    if method == "naive":
        return optimizer not in _OUR_OPTIMIZERS
    if method == "ewc" and fisher == "examples":
        return False
    return method in _PAPER_METHODS_WITH_SGD and optimizer == "sgd"
