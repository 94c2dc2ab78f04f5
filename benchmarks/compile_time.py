"""What it costs to compile a TAG step, beside optax.adam's.

    python -m benchmarks.compile_time [--quick]

CPU seconds of one process to trace, lower and compile a donated training step of 30, 150 and 300
leaves: those of a transformer, whose layers repeat. Every `tag_optax.grow` pays this again.
"""

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax

import tag_optax
from benchmarks import measure
from benchmarks.update_cost import VARIANTS

LEAVES = (30, 150, 300)
BOUND = 4.0
# A layer of width 64 with an inner width of 256, its attention in four parts.
LAYER = [(64, 64)] * 4 + [(64, 256), (256, 64), (64,), (256,), (64,), (64,)]


def seconds(tx: optax.GradientTransformation, leaves: int) -> float:
    tx = optax.with_extra_args_support(tx)
    params = [jnp.zeros(LAYER[i % len(LAYER)]) for i in range(leaves)]
    state = jax.eval_shape(tx.init, params)

    def step(params: Any, state: Any, gradients: Any, task: jax.Array) -> Any:
        updates, state = tx.update(gradients, state, params, task_id=task)
        return optax.apply_updates(params, updates), state

    jax.clear_caches()
    start = time.process_time()
    jax.jit(step, donate_argnums=(0, 1)).lower(params, state, params, jnp.int32(0)).compile()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="30 leaves only, once")
    quick = parser.parse_args().quick
    record: dict[str, Any] = measure.environment("benchmarks.compile_time")
    kinds = {f"tag_rmsprop {name}".strip(): arguments for name, arguments in VARIANTS.items()}
    kinds["tag_rmsprop bank=full(split=True)"] = {"bank": tag_optax.full(split=True)}
    optimizers: dict[str, optax.GradientTransformation] = {"optax.adam": optax.adam(1e-3)}
    optimizers |= {name: tag_optax.tag_rmsprop(5.0, 20, **kind) for name, kind in kinds.items()}
    optimizers["tag_adam"] = tag_optax.tag_adam(5.0, 20)
    seconds(optimizers["optax.adam"], 3)  # What JAX does once in a process.

    record["rows"] = rows = []
    for leaves in LEAVES[: 1 if quick else None]:
        rounds = [
            {name: seconds(tx, leaves) for name, tx in optimizers.items()}
            for _ in range(1 if quick else 3)
        ]
        medians = {name: statistics.median(r[name] for r in rounds) for name in optimizers}
        for name, median in medians.items():
            ratio = median / medians["optax.adam"]
            rows.append(
                {
                    "leaves": leaves,
                    "optimizer": name,
                    "cpu_s": round(median, 3),
                    "of_adam": round(ratio, 2),
                    "met": ratio <= BOUND,
                }
            )
            print(f"{leaves:>4} {name:<55} {median:6.2f} s  {ratio:5.2f} x adam", flush=True)
    record["bound"] = BOUND
    name = "compile_time_quick" if quick else "compile_time"
    print("written to", measure.write(name, record).name)


if __name__ == "__main__":
    main()
