"""What the installed wheel must do without any of the training package's dependencies.

A script, not a test: ``.ci/run`` copies it out of the checkout and runs it where only the wheel is
installed.
"""

import importlib.util
import pathlib

import jax.numpy as jnp

import tag_optax

for name in ("flax", "orbax", "tensorflow", "tensorflow_datasets", "chex"):
    assert importlib.util.find_spec(name) is None, f"{name} is here: this proves nothing"

package = pathlib.Path(tag_optax.__file__).parent
assert (package / "py.typed").exists(), "type hints are not shipped"
assert not (package.parent / "train").exists(), "the wheel holds more than tag_optax"

tx = tag_optax.tag_rmsprop(5.0, 2)
state = tx.init(jnp.zeros(3))
for task in (0, 1):
    updates, state = tx.update(jnp.ones(3), state, task_id=task)
assert jnp.isfinite(updates).all()
print(f"tag_optax {tag_optax.__version__} works from its wheel")
