"""The paper's equations in plain numpy float64, one Python loop a task: slow, and easy to check."""

import dataclasses
import math
from typing import Any

import numpy as np

Vectors = dict[str, np.ndarray]


@dataclasses.dataclass
class Task:
    m: Vectors
    v: Vectors
    gradients: list[Vectors] = dataclasses.field(default_factory=list)  # The first B of them.
    steps: int = 0


@dataclasses.dataclass
class NumpyTag:
    optimizer: str  # "rms", "adagrad" or "adam"
    b: float
    b1: float = 0.9
    b2: float = 0.99
    eps: float = 1e-8
    eps_in_sqrt: bool = True
    scope: str = "global"
    relatedness: str = "cosine"
    count: int = 1
    anchor: float = 0.0
    last: int | None = None  # The task of the last step, and
    start: Vectors = dataclasses.field(default_factory=dict)  # the parameters when it began.
    tasks: dict[int, Task] = dataclasses.field(default_factory=dict)
    alpha: dict[int, Any] = dataclasses.field(default_factory=dict)

    def update(self, g: Vectors, t: int, params: Vectors | None = None) -> Vectors:
        if params is not None and t != self.last:
            self.start = {name: np.array(x, np.float64) for name, x in params.items()}
        self.last = t
        g = {name: np.asarray(x, np.float64) for name, x in g.items()}
        zeros = {name: np.zeros_like(x) for name, x in g.items()}
        task = self.tasks.setdefault(t, Task(m=zeros, v=zeros))
        task.steps += 1
        if len(task.gradients) < self.count:
            task.gradients.append(g)
        task.m = {k: self.b1 * task.m[k] + (1 - self.b1) * g[k] for k in g}
        if self.optimizer == "adagrad":
            task.v = {k: task.v[k] + g[k] ** 2 for k in g}
        else:
            task.v = {k: self.b2 * task.v[k] + (1 - self.b2) * g[k] ** 2 for k in g}
        return {k: self._step(k, t, g, params) for k in g}

    def _step(self, name: str, t: int, g: Vectors, params: Vectors | None) -> np.ndarray:
        task = self.tasks[t]
        others = [s for s in self.tasks if s != t]
        names = [name] if self.scope == "leaf" else list(g)
        if others:
            self.alpha = {s: self._alpha(t, s, names) for s in others}
            self.alpha[t] = 1.0 if self.relatedness in ("uniform", "age") else math.exp(-self.b)
        else:
            self.alpha = {t: 1.0}
        w = sum(a * self.tasks[s].v[name] for s, a in self.alpha.items())
        pull = 0.0
        if self.anchor and params is not None:
            p = w - self.alpha[t] * task.v[name]
            pull = self.anchor * p * (np.asarray(params[name], np.float64) - self.start[name])
        if self.optimizer != "adam":
            root = np.sqrt(w + self.eps) if self.eps_in_sqrt else np.sqrt(w) + self.eps
            return (g[name] + pull) / root
        m_hat = task.m[name] / (1 - self.b1**task.steps)
        correction = math.sqrt(1 - self.b2**task.steps)
        if self.eps_in_sqrt:
            return correction * (m_hat + pull) / np.sqrt(w + self.eps)
        return (m_hat + pull) / (np.sqrt(w) / correction + self.eps)

    def _alpha(self, t: int, s: int, names: list[str]) -> float:
        if self.relatedness in ("uniform", "own"):
            return 1.0
        if self.relatedness == "age":
            return abs(t - s) + 1.0
        if self.relatedness == "first_gradients":
            pairs = [
                cosine(one, two, names)
                for one in self.tasks[t].gradients
                for two in self.tasks[s].gradients
            ]
            return math.exp(-self.b * float(np.mean(pairs)))
        return math.exp(-self.b * cosine(self.tasks[t].m, self.tasks[s].m, names))


def cosine(one: Vectors, two: Vectors, names: list[str]) -> float:
    a = np.concatenate([one[name].ravel() for name in names])
    b = np.concatenate([two[name].ravel() for name in names])
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / lengths) if lengths else 0.0
