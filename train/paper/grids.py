"""The values that a search tries for each method and optimizer.

The paper has grids for its optimizers, and for EWC, A-GEM and ER with SGD. The others are ours: the
ablations of TAG-RMSProp take its grid, and any other method that of its optimizer, together with
the settings that the paper searched for that method.
"""

from train.paper.presets import ABLATIONS
from train.run.config import Record

_TAG_RMSPROP_RATES = (0.005, 0.001, 0.0005, 0.00025, 0.0001, 0.00005, 0.000025, 0.00001)
_TAG_B = (1.0, 3.0, 5.0, 7.0)

_PAPERS: dict[str, dict[str, tuple[float, ...]]] = {
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
}
_OURS = dict.fromkeys(ABLATIONS, _PAPERS["tag-rmsprop"])
# Beside the optimizer's. With SGD, the paper gives every method the rates of SGD.
_PAPER_LAMBDAS = (1.0, 10.0, 100.0)
# For the Fisher information of single examples, which is larger (see presets.py).
_LAMBDAS = (0.003, 0.03, 0.3)

_PAPER_METHODS_WITH_SGD = ("ewc", "a-gem", "er")


def axes(record: Record) -> dict[str, tuple[float, ...]]:
    """The settings to vary, and their values; none for an optimizer from outside.

    >>> from train.paper.presets import preset
    >>> axes(preset("split-cub", "sgd", "ewc").changed({"fisher": "batch"}).record)
    {'learning_rate': (0.1, 0.05, 0.01, 0.001), 'ewc_lambda': (1.0, 10.0, 100.0)}
    """
    found = (_PAPERS | _OURS).get(record["optimizer"], {})
    if record["method"] == "ewc":
        lambdas = _PAPER_LAMBDAS if record["fisher"] == "batch" else _LAMBDAS
        found = found | {"ewc_lambda": lambdas}
    without_b = record.get("relatedness") in ("uniform", "age")
    # A model from outside may have no dropout.
    return {n: v for n, v in found.items() if n in record and not (n == "b" and without_b)}


def is_papers(record: Record) -> bool:
    """Whether the paper has searched this grid.

    >>> from train.paper.presets import preset
    >>> pairs = ("naive", "tag-adam"), ("er", "sgd"), ("er", "tag-adam")
    >>> [is_papers(preset("split-cub", optimizer, method).record) for method, optimizer in pairs]
    [True, True, False]
    """
    method, optimizer = record["method"], record["optimizer"]
    if record.get("relatedness", "cosine") != "cosine":
        return False
    if method == "naive":
        return optimizer in _PAPERS
    if method == "ewc" and record["fisher"] == "examples":
        return False
    return method in _PAPER_METHODS_WITH_SGD and optimizer == "sgd"
