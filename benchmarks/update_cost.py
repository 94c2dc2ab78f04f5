"""What one TAG step costs, beside optax.rmsprop and beside reading the bank once.

    python -m benchmarks.update_cost [--quick]

Every step applies its update to donated parameters and state. "past" counts the tasks seen other
than the one at hand. "read" is one pass over the moments of the past tasks, as flat matrices, by
the fastest of several products: no method that uses every moment can be faster.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import tag_optax
from benchmarks import measure

Params = list[jax.Array]


def reduced_resnet18() -> list[tuple[int, ...]]:
    """The 48 leaves of the paper's network: 496,680 parameters at 100 outputs."""
    shapes: list[tuple[int, ...]] = [(3, 3, 3, 20), (20,), (20,)]
    width = 20
    for channels in (20, 40, 80, 160):
        for _ in range(2):
            shapes += [(3, 3, width, channels), *[(channels,)] * 4]
            if width != channels:
                shapes.append((1, 1, width, channels))
            width = channels
    return [*shapes, (width, 100), (100,)]


LEAF_SETS = {
    "497 k": reduced_resnet18(),
    "10 M": [(1000, 1000)] * 10,
    "50 M": [(2048, 2048)] * 12,
}


# Other arguments than the defaults, by what one writes.
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    'bank=full("bfloat16", "bfloat16")': {"bank": tag_optax.full("bfloat16", "bfloat16")},
    'bank="compressed"': {"bank": "compressed"},
    "bank=clustered(16)": {"bank": tag_optax.clustered(16)},
    'relatedness=cosine("leaf")': {"relatedness": tag_optax.cosine("leaf")},
    'relatedness="own"': {"relatedness": "own"},
    'relatedness="own", bank="running_sum"': {"relatedness": "own", "bank": "running_sum"},
}
COMPRESSED, CLUSTERED = 'bank="compressed"', "bank=clustered(16)"
RUNNING_SUM = 'relatedness="own", bank="running_sum"'


class Case(NamedTuple):
    leaves: str
    capacity: int
    past: int
    rounds: int
    arguments: str = ""
    seeds: int = 1


def zeros(leaves: str, seeds: int = 1) -> Params:
    lead = () if seeds == 1 else (seeds,)
    return [jnp.zeros((*lead, *shape)) for shape in LEAF_SETS[leaves]]


def normal(leaves: str, seeds: int = 1) -> Params:
    key = jax.random.key(0)
    return [
        jax.random.normal(jax.random.fold_in(key, i), p.shape)
        for i, p in enumerate(zeros(leaves, seeds))
    ]


class Runner:
    """A jitted, donated training step that keeps its parameters and state."""

    def __init__(
        self, tx: optax.GradientTransformationExtraArgs, leaves: str, seeds: int = 1
    ) -> None:
        self.params = zeros(leaves, seeds)
        self.gradients = normal(leaves, seeds)
        self.task = jnp.int32(0)

        def step(params: Params, state: Any, gradients: Params, task: jax.Array) -> Any:
            updates, state = tx.update(gradients, state, params, task_id=task)
            return optax.apply_updates(params, updates), state

        init: Callable[[Params], Any] = tx.init
        if seeds > 1:
            axes = tag_optax.vmap_axes(tx, zeros(leaves))
            init = jax.vmap(tx.init, out_axes=axes)
            step = jax.vmap(step, (0, axes, 0, None), (0, axes))
        self.state = jax.jit(init)(self.params)
        self.step = jax.jit(step, donate_argnums=(0, 1))
        arguments = (self.params, self.state, self.gradients, self.task)
        memory: Any = self.step.lower(*arguments).compile().memory_analysis()
        one_copy = sum(p.nbytes for p in self.params) / seeds
        self.temporaries = round(memory.temp_size_in_bytes / one_copy, 2)

    def learn(self, task: int) -> None:
        self.task = jnp.int32(task)
        self()

    def __call__(self) -> Any:
        self.params, self.state = self.step(self.params, self.state, self.gradients, self.task)
        return self.params


def bank_reads(leaves: str, rows: int) -> dict[str, Callable[[], Any]]:
    """Ways to read ``rows`` rows of first and of second moments once."""
    size = sum(p.size for p in zeros(leaves))
    mu, nu = jnp.ones((rows, size)), jnp.ones((rows, size))
    row, weights = jnp.ones(size), jnp.ones(rows)
    products = {
        "read, mixed": jax.jit(lambda m, v: (m @ row, weights @ v)),
        "read, dots": jax.jit(lambda m, v: (m @ row, v @ row)),
        "read, sums": jax.jit(lambda m, v: (weights @ m, weights @ v)),
    }
    return {name: functools.partial(f, mu, nu) for name, f in products.items()}


def stacked_tag(capacity: int) -> optax.GradientTransformationExtraArgs:
    """The obvious TAG-RMSProp: one stacked tree, rewritten at every step. For comparison only."""

    def init(params: Params) -> Any:
        bank = [jnp.zeros((capacity, *p.shape)) for p in params]
        return bank, [b + 0 for b in bank], jnp.zeros(capacity, bool)

    def update(
        updates: Params, state: Any, params: Any = None, *, task_id: jax.Array, **extra: Any
    ) -> Any:
        mu, nu, seen = state
        seen = seen.at[task_id].set(True)
        rows = zip(mu, nu, updates, strict=True)
        pairs = [
            (
                m.at[task_id].set(0.9 * m[task_id] + 0.1 * g),
                v.at[task_id].set(0.99 * v[task_id] + 0.01 * g**2),
            )
            for m, v, g in rows
        ]
        mu, nu = [m for m, _ in pairs], [v for _, v in pairs]
        dots = sum(jnp.tensordot(m, m[task_id], m.ndim - 1) for m in mu)
        norms = jnp.sqrt(sum(jnp.sum(m**2, axis=range(1, m.ndim)) for m in mu))
        lengths = jnp.maximum(norms * norms[task_id], 1e-30)
        alpha = jnp.where(seen, jnp.exp(-5 * dots / lengths), 0)
        w = [jnp.tensordot(alpha, v, 1) for v in nu]
        scaled = [-1e-3 * g / jnp.sqrt(x + 1e-8) for g, x in zip(updates, w, strict=True)]
        return scaled, (mu, nu, seen)

    functions: Any = (init, update)
    return optax.GradientTransformationExtraArgs(*functions)


def run(case: Case) -> dict[str, Any]:
    """Medians of one case in milliseconds, all of its programs in turns."""
    rmsprop = Runner(optax.with_extra_args_support(optax.rmsprop(1e-3, 0.99)), case.leaves)
    tx = tag_optax.tag_rmsprop(5.0, case.capacity, 1e-3, **VARIANTS[case.arguments])
    tag = Runner(tx, case.leaves, case.seeds)
    for task in range(case.past + 1):
        tag.learn(task)
    functions: dict[str, Callable[[], Any]] = {"rmsprop": rmsprop, "tag": tag}
    if case.past and not case.arguments and case.seeds == 1:
        functions |= bank_reads(case.leaves, case.past)
    times = measure.medians(measure.in_turns(functions, case.rounds))
    reads = [ms for name, ms in times.items() if name.startswith("read")]
    return {
        "parameters": case.leaves,
        "capacity": case.capacity,
        "past": case.past,
        "arguments": case.arguments,
        "seeds": case.seeds,
        "rounds": case.rounds,
        "rmsprop_ms": round(times["rmsprop"], 3),
        "read_ms": round(min(reads), 3) if reads else 0.0,
        "tag_ms": round(times["tag"], 3),
        "temporaries_in_copies": tag.temporaries,
        "state_mb": round(tag_optax.state_bytes(tx, zeros(case.leaves)) * case.seeds / 1e6, 1),
    }


def ratio(first: Runner, second: Runner, rounds: int, block: int = 5) -> float:
    """The cost of one program in units of another's, both measured by turns."""
    functions = {"first": first, "second": second}
    times = measure.medians(measure.in_turns(functions, rounds, block))
    return times["first"] / times["second"]


def ready(leaves: str, capacity: int, past: int, seeds: int = 1, arguments: str = "") -> Runner:
    tx = tag_optax.tag_rmsprop(5.0, capacity, 1e-3, **VARIANTS[arguments])
    runner = Runner(tx, leaves, seeds)
    for task in range(past + 1):
        runner.learn(task)
    return runner


def requirements(rows: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """The bounds that the project sets itself, each measured inside one process."""

    def relative(leaves: str, past: int, arguments: str = "") -> float | None:
        """A step / (rmsprop + one read of the past's moments)."""
        wanted = {"parameters": leaves, "capacity": 20, "past": past, "seeds": 1}
        wanted["arguments"] = arguments
        row = next((r for r in rows if all(r[k] == v for k, v in wanted.items())), None)
        return row["tag_ms"] / (row["rmsprop_ms"] + row["read_ms"]) if row else None

    few, many = ready("497 k", 64, 1), ready("497 k", 64, 63)
    five, one = ready("497 k", 20, 19, seeds=5), ready("497 k", 20, 19)
    coded = ready("497 k", 20, 19, arguments=COMPRESSED)
    one_bank = 20 * 2
    sums = "relatedness='own', bank='running_sum': step / rmsprop"
    checks = [
        ("19 past tasks: step / (rmsprop + read)", relative("497 k", 19), 1.3),
        ("10 past tasks: step / (rmsprop + read)", relative("497 k", 10), 1.8),
        ("5 past tasks: step / (rmsprop + read)", relative("497 k", 5), 1.8),
        ("no past task: step / rmsprop", relative("497 k", 0), 3.0),
        ("no past task, 10 M: step / rmsprop", relative("10 M", 0), 2.5),
        ("no past task, 50 M: step / rmsprop", relative("50 M", 0), 2.5),
        (sums, relative("497 k", 5, RUNNING_SUM), 1.5),
        (f"{sums}, 10 M", relative("10 M", 5, RUNNING_SUM), 1.5),
        (f"{sums}, 50 M", relative("50 M", 5, RUNNING_SUM), 1.5),
        ("bank='compressed' / bank='full', 19 past tasks", ratio(coded, one, rounds), 1.0),
        ("1 of 64 tasks / 64 of 64 tasks", ratio(few, many, rounds), 0.2),
        ("temporaries, copies of the parameters", one.temporaries, 3.0),
        ("five vmapped seeds / one seed", ratio(five, one, rounds), 6.0),
        ("five vmapped seeds: temporaries / bank of one seed", five.temporaries / one_bank, 1.0),
    ]
    met = [
        {"what": what, "measured": round(value, 3), "bound": bound, "met": value <= bound}
        for what, value, bound in checks
        if value is not None
    ]
    cold = ratio(few, many, rounds, block=0)
    what = "1 of 64 tasks / 64 of 64 tasks, each step right after one of the other"
    return [*met, {"what": what, "measured": round(cold, 3)}]


def cases(quick: bool) -> list[Case]:
    rounds = 6 if quick else 40
    small = [Case("497 k", 20, past, rounds) for past in (0, 1, 2, 5, 10, 19)]
    small += [Case("497 k", 64, past, rounds) for past in (1, 8, 63)]
    small += [Case("497 k", 20, 19, rounds, arguments) for arguments in VARIANTS if arguments]
    small.append(Case("497 k", 20, 5, rounds, RUNNING_SUM))
    small.append(Case("497 k", 20, 19, rounds // 2, seeds=5))
    if quick:
        return small
    large = [Case("10 M", 20, past, 5) for past in (0, 1, 5, 10, 19)]
    large += [Case("10 M", 20, 19, 5, COMPRESSED), Case("10 M", 20, 5, 5, RUNNING_SUM)]
    large += [Case("50 M", 20, past, 2) for past in (0, 1, 19)]
    large += [Case("50 M", 20, 19, 2, COMPRESSED), Case("50 M", 20, 5, 5, RUNNING_SUM)]
    return small + large


def describe(row: dict[str, Any]) -> str:
    seeds = f"{row['seeds']} seeds" if row["seeds"] > 1 else ""
    return row["arguments"] or seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="the small network only")
    quick = parser.parse_args().quick
    record: dict[str, Any] = measure.environment("benchmarks.update_cost")

    print(f"{'params':>7}{'K':>4}{'past':>5}{'rmsprop':>9}{'read':>9}{'TAG':>9}", end="")
    print(f"{'ratio':>7}{'temps':>7}{'state MB':>10}  (ms; ratio = TAG / (rmsprop + read))")
    rows = []
    for case in cases(quick):
        row = run(case)
        rows.append(row)
        relative = row["tag_ms"] / (row["rmsprop_ms"] + row["read_ms"])
        comparable = not row["arguments"] and row["seeds"] == 1
        print(
            f"{row['parameters']:>7}{row['capacity']:>4}{row['past']:>5}{row['rmsprop_ms']:>9.2f}"
            f"{row['read_ms']:>9.2f}{row['tag_ms']:>9.2f}"
            f"{f'{relative:.2f}' if comparable else '-':>7}{row['temporaries_in_copies']:>7.2f}"
            f"{row['state_mb']:>10.1f}  {describe(row)}",
            flush=True,
        )
    naive = Runner(stacked_tag(20), "497 k")
    for task in range(20):
        naive.learn(task)
    naive_ms = measure.medians(measure.in_turns({"naive": naive}, 4))["naive"]
    print(f"one stacked tree rewritten at every step: {naive_ms:.1f} ms, ", end="")
    print(f"{naive.temporaries:.1f} copies of temporaries")
    checks = requirements(rows, 10 if quick else 60)
    for check in checks:
        verdict = {True: "met", False: "MISSED", None: ""}[check.get("met")]
        bound = f" (at most {check['bound']})" if "bound" in check else ""
        print(f"{verdict:>6}  {check['what']}: {check['measured']}{bound}")
    record["rows"] = rows
    record["stacked_tree"] = {"ms": round(naive_ms, 1), "temporaries_in_copies": naive.temporaries}
    record["requirements"] = checks
    print("written to", measure.write("update_cost_quick" if quick else "update_cost", record).name)


if __name__ == "__main__":
    main()
