"""Settings for each stream, optimizer and method: the paper's appendix, ours where it has none.

The paper gives rates for four streams, and for `rotated-mnist` those of SGD and TAG-RMSProp, which
are the ones of Split-CIFAR100: the other optimizers, and `permuted-mnist`, take theirs from there
too. The rates of `rotated-digits` are the best of a grid on its validation part
(`benchmarks/digits_rates.py`). `tag-anchored` is ours: its settings are the best of two grids on
the held-out part of Split-CIFAR100 (`benchmarks/results/anchored.json`), and the same on every
stream but for TAG-RMSProp's rate. What comes from outside has its own defaults.
"""

import functools
import hashlib
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from train import settings
from train.run.config import KINDS, Config, Record, RunSettings, find

_PAPERS_STREAMS = ("split-cifar100", "split-mini-imagenet", "split-cub", "five-datasets")
_STREAMS = (*_PAPERS_STREAMS, "rotated-digits")
_TAG_RMSPROP = (0.00025, 0.0001, 0.000025, 0.0005)
_RATES = {  # In the order of the streams above.
    "sgd": (0.1, 0.05, 0.01, 0.1, 0.1),
    "adagrad": (0.005, 0.005, 0.0005, 0.005, 0.025),
    "rmsprop": (0.005, 0.001, 0.0001, 0.001, 0.0025),
    "adam": (0.005, 0.001, 0.0001, 0.001, 0.001),
    "stable-sgd": (0.1, 0.1, 0.05, 0.1, 0.25),
    "tag-rmsprop": (*_TAG_RMSPROP, 0.001),
    "tag-adagrad": (0.005, 0.001, 0.0005, 0.005, 0.01),
    "tag-adam": (0.0005, 0.00025, 0.0001, 0.001, 0.0025),
    "tag-uniform": (*_TAG_RMSPROP, 0.005),
    "tag-age": (*_TAG_RMSPROP, 0.005),
    "tag-g": (*_TAG_RMSPROP, 0.001),
    "tag-self": (*_TAG_RMSPROP, 0.001),
    "tag-anchored": (*_TAG_RMSPROP, 0.0005),
}
ABLATIONS = ("tag-uniform", "tag-age", "tag-g", "tag-self")
"""Change where TAG-RMSProp's weights come from, and keep its rate."""
# A method has rates of its own where the paper searched them, with SGD and for TAGed ER, and found
# others (not so for EWC and ER with SGD); else it takes the optimizer's, as its combinations do.
_METHOD_RATES = {
    ("a-gem", "sgd"): (0.1, 0.1, 0.01, 0.1, 0.1),
    ("er", "tag-rmsprop"): (0.0005, 0.0001, 0.0001, 0.0005, 0.001),
    ("multitask", "sgd"): (0.01, 0.01, 0.01, 0.05, 0.1),  # From the authors' log.
}
# The paper's 1, 1, 1 and 100 go with the authors' Fisher information, the square of a mean gradient
# over 200 examples. The mean of the squares is 15 to 45 times larger on the first tasks of
# Split-CIFAR100, and its sum over the tasks makes SGD unstable at the paper's rate: a lambda of 1
# diverges at once, one of 0.03 in the 15th task of seed 2. Of what is stable, the better on
# held-out data: python -m train grid --stream split-cifar100 --method ewc --optimizer sgd
# --vary ewc_lambda=0.003,0.01 --seeds 2 (53.9 % and 48.6 %). On the digits the best of 0.03 to 30:
# --vary ewc_lambda=0.03,0.3,1,3,10,30 --seeds 1 2.
_EWC_LAMBDA = (0.003, 0.003, 0.003, 0.3, 10.0)
_STABLE_DECAY = (0.9, 0.9, 0.9, 0.7, 0.9)
_STABLE_DROPOUT = (0.1, 0.0, 0.0, 0.0, 0.0)
# The paper names no momentum. Without it Stable SGD forgets far more than the paper prints
# (Split-CIFAR100, seeds 1 and 2: 0.148 and 0.128, not 0.09); with it, seeds 1 to 3 forget 0.081,
# 0.124 and 0.082, and end at 56.1, 53.8 and 57.0 % (50.2 and 50.8 without; the paper: 57.04).
_STABLE_MOMENTUM = (0.8, 0.8, 0.8, 0.8, 0.0)

_MODELS = dict.fromkeys(_PAPERS_STREAMS, "resnet18-reduced") | {"split-cub": "resnet18"}
_OTHER_MODEL = "mlp"
_OF_STREAM: dict[str, dict[str, Any]] = {
    "five-datasets": dict(batch_size=64, b=7.0),
    "rotated-mnist": dict(hidden=(256, 256), log_every=500),
    "permuted-mnist": dict(hidden=(256, 256), log_every=500),
}


def preset(stream: str, optimizer: str, method: str = "naive", model: str | None = None) -> Config:
    """The paper's settings for a stream, an optimizer and a method, or ours where it has none."""
    model = model or _MODELS.get(stream, _OTHER_MODEL)
    names = dict(stream=stream, method=method, optimizer=optimizer, model=model)
    parts: dict[str, Any] = {kind: find(kind, name) for kind, name in names.items()}
    return Config(**parts).changed(_known(stream, method, optimizer, model))


def usual(record: Record) -> Record:
    """The preset that a record starts from; what comes from outside stays as it is."""
    fields = {**record, **_known_of(record), "model": _MODELS.get(record["stream"], _OTHER_MODEL)}
    for kind in ("loss", "score"):  # Whichever of our own: it follows from what the targets are.
        if record[kind] not in KINDS[kind][0]:
            fields[kind] = "auto"
    return Record({name: fields[name] for name in record})


def foreign(record: Record) -> list[str]:
    """The settings that no preset knows, since their parts come from outside."""
    known = _known_of(record)
    return [name for name in record if name not in known and name not in KINDS]


def variant(record: Record) -> str:
    """What a record changes in its preset, for the name of a directory; nothing for the preset."""
    theirs, extends = dict(usual(record)), ("capacity",)
    for kind in ("stream", "method", "optimizer", "model"):
        # One without a module is a callable that Python was given: nobody can find it again.
        if record[kind] in KINDS[kind][0] or ":" in record[kind]:
            part = find(kind, record[kind]).value
            # More tasks extend a run, and make no other one of it.
            extends += getattr(part, "extends", ())
            if ":" in record[kind]:
                theirs |= settings.values(part)
    texts = []
    for name, value in record.items():
        if value != theirs[name] and name not in extends:
            text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            texts.append(name + "=" + re.sub(r"[^\w.+-]+", "_", text))
    name = ",".join(texts)
    written = name.encode()  # A file system takes 255 bytes.
    if len(written) <= 200:
        return name
    beginning = written[:180].decode(errors="ignore")
    return f"{beginning},{hashlib.sha256(written).hexdigest()[:16]}"


def experiment(out: pathlib.Path, record: Record) -> pathlib.Path:
    """A directory for each record."""
    names = (re.sub(r"[^\w.-]+", ".", record[k]) for k in ("stream", "method", "optimizer"))
    return out.joinpath(*names, variant(record))


def _known_of(record: Record) -> Mapping[str, Any]:
    return _known(record["stream"], record["method"], record["optimizer"], record["model"])


@functools.cache  # A report asks for every run.
def _known(stream: str, method: str, optimizer: str, model: str) -> Mapping[str, Any]:
    """The preset's value of each setting of the run and of what is built in."""
    found = settings.values(RunSettings())
    names = dict(stream=stream, method=method, optimizer=optimizer, model=model)
    for kind, name in names.items():
        found |= settings.values(KINDS[kind][0].get(name))
    if stream in KINDS["stream"][0]:
        column = _STREAMS.index(stream if stream in _STREAMS else "split-cifar100")
        chosen = _OF_STREAM.get(stream, {}) | {"ewc_lambda": _EWC_LAMBDA[column]}
        rates = _METHOD_RATES.get((method, optimizer), _RATES.get(optimizer))
        if rates:
            chosen["learning_rate"] = rates[column]
        if optimizer == "stable-sgd":
            chosen |= dict(decay=_STABLE_DECAY[column], dropout=_STABLE_DROPOUT[column])
            chosen["momentum"] = _STABLE_MOMENTUM[column]
        if optimizer == "tag-anchored":
            chosen["average"] = 0.99
        # What differs from the parts' own defaults, of those that have it.
        found |= {name: value for name, value in chosen.items() if name in found}
    if found.get("relatedness") in ("uniform", "age"):  # Which have no use for it.
        found["b"] = settings.values(KINDS["optimizer"][0][optimizer])["b"]
    return found
