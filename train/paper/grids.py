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
    "tag-anchored": {
        "anchor": (2.0, 5.0, 10.0, 20.0),
        "b": (5.0, 7.0),
        "learning_rate": (0.0005, 0.00025),
    },
    "tag-adam": {"learning_rate": (0.005, 0.001, 0.0005, 0.00025, 0.0001), "b": _TAG_B},
}


def axes(record: Record) -> dict[str, tuple[float, ...]]:
    """The settings to vary, and their values; none for an optimizer from outside."""
    optimizer = record["optimizer"]
    found = _PAPERS.get("tag-rmsprop" if optimizer in ABLATIONS else optimizer, {})
    if record["method"] == "ewc":
        # The Fisher information of single examples is larger than the paper's (see presets.py).
        lambdas = (1.0, 10.0, 100.0) if record["fisher"] == "batch" else (0.003, 0.03, 0.3)
        found = found | {"ewc_lambda": lambdas}
    without_b = record.get("relatedness") in ("uniform", "age")
    # A model from outside may have no dropout.
    return {n: v for n, v in found.items() if n in record and not (n == "b" and without_b)}


def is_papers(record: Record) -> bool:
    """Whether the paper has searched this grid. With SGD it gives every method the rates of SGD."""
    method, optimizer = record["method"], record["optimizer"]
    if method == "naive":
        return optimizer in _PAPERS and record.get("relatedness", "cosine") == "cosine"
    papers = method in ("a-gem", "er") or (method == "ewc" and record["fisher"] == "batch")
    return papers and optimizer == "sgd"
