"""Programs for accelerators that are not here: `jax.export` lowers them, and their text is read.

What is looked for: 64-bit floats, which a TPU emulates and a GPU is slow at, and calls back to the
host, which neither could do in the middle of a step.
"""

import dataclasses
import re
from collections.abc import Iterator

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tag_optax
from tests.train.conftest import make_stream, with_parts
from train.paper.presets import preset
from train.run.engine import Engine
from train.run.step import Outcome
from train.streams import Stream, Task

pytestmark = pytest.mark.ci

PLATFORMS = ["cuda", "tpu"]
# JAX's own random numbers may be a kernel of their own on GPUs.
KERNELS = {"cuda": {"cu_threefry2x32_ffi"}, "tpu": set()}


@pytest.fixture(autouse=True)
def strict_numerics() -> Iterator[None]:
    """In place of the library's: single precision, as on an accelerator."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("strict"):
        yield


def shapes_of(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def exported(function, platform, *arguments, **options):
    """The text of a jitted function for a platform."""
    program = jax.export.export(function, platforms=[platform], **options)(*arguments)
    assert program.platforms == (platform,)
    return program.mlir_module()


def doubles(text):
    return re.findall(r"\bf64\b|xf64\b|\bc(?:omplex<f64>)", text)


def custom_calls(text):
    named = re.findall(r"custom_call\s*@(\w+)", text)
    return {*named, *re.findall(r'call_target_name\s*=\s*"(\w+)"', text)}


def host_transfers(text):
    return re.findall(r"stablehlo\.(?:send|recv|infeed|outfeed)\b", text)


def check(text, platform):
    assert "stablehlo." in text
    assert not doubles(text)
    assert custom_calls(text) <= KERNELS[platform]
    assert not host_transfers(text)


BANKS = {
    "full": dict(bank="full"),
    "full, split": dict(bank=tag_optax.full(split=True)),
    "full, bfloat16": dict(bank=tag_optax.full("bfloat16", "bfloat16")),
    "compressed": dict(bank=tag_optax.compressed(251)),
    "compressed, split": dict(bank=tag_optax.compressed(251, split=True)),
    "clustered": dict(bank=tag_optax.clustered(4)),
    "running sum": dict(bank="running_sum", relatedness="own"),
}
SHAPES = {"kernel": (3, 3, 8, 16), "matrix": (64, 32), "vector": (10,)}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bank", BANKS)
def test_an_update(bank, dtype, platform):
    tx = tag_optax.tag_rmsprop(5.0, 8, **BANKS[bank])
    params = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in SHAPES.items()}
    state = jax.eval_shape(tx.init, params)
    step = jax.jit(lambda g, s, p, t: tx.update(g, s, p, task_id=t), donate_argnums=(0, 1))
    task = jax.ShapeDtypeStruct((), jnp.int32)
    text = exported(step, platform, params, state, params, task)
    check(text, platform)
    assert ("ui8" in text) == (bank.startswith("compressed"))  # The bank is what it is called.


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("optimizer", ["tag_adam", "tag_adagrad"])
def test_the_other_optimizers(optimizer, platform):
    tx = getattr(tag_optax, optimizer)(5.0, 8, relatedness=tag_optax.cosine("leaf"))
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}
    state = jax.eval_shape(tx.init, params)
    step = jax.jit(lambda g, s, p, t: tx.update(g, s, p, task_id=t), donate_argnums=(0, 1))
    task = jax.ShapeDtypeStruct((), jnp.int32)
    check(exported(step, platform, params, state, params, task), platform)


# A training step of `train`.


def arguments_of_train(engine):
    """The shapes of what the engine's compiled function is called with."""
    seeds, found = tuple(range(engine.num_seeds)), []

    def record(*arguments):
        found.append(shapes_of(arguments))
        nothing = np.zeros((engine.steps_per_call, engine.num_seeds), np.float32)
        return arguments[0], Outcome(nothing, nothing)

    compiled, engine._train = engine._train, record
    try:
        engine.train(engine.init(seeds), seeds, 0, range(1))
    finally:
        engine._train = compiled
    return found[0]


def small_engine(num_seeds=1, optimizer="tag-rmsprop", method="naive", **settings):
    small = dict(hidden=(8,), num_tasks=3, batch_size=4, dropout=0.1)
    config = preset("rotated-digits", "tag-rmsprop")
    config = with_parts(config, optimizer=optimizer, method=method, **(small | settings))
    return Engine(config.resolved(np.int32), make_stream(), num_seeds)


@pytest.mark.parametrize(
    ("num_seeds", "settings"),
    [
        (1, dict(steps_per_call=1)),
        (1, dict(steps_per_call=25)),
        (2, dict(steps_per_call=1)),
        (1, dict(steps_per_call=1, bank="compressed")),
        (1, dict(steps_per_call=1, bank="clustered", rows=2)),
        (1, dict(steps_per_call=1, method="er", optimizer="adam")),
        (1, dict(steps_per_call=1, schedule="cosine", warmup=0.1, clip=1.0, average=0.9)),
    ],
    ids=str,
)
def test_a_training_step(num_seeds, settings):
    with jax.numpy_dtype_promotion("standard"):
        engine = small_engine(num_seeds, **settings)
        arguments = arguments_of_train(engine)
        for platform in PLATFORMS:
            text = exported(engine._train, platform, *arguments)
            check(text, platform)
            assert "dot_general" in text


def colour_images():
    """As `make_stream`, in images that are large enough to be convolved."""
    stream = make_stream()

    def larger(part):
        return dataclasses.replace(part, x=np.tile(part.x, (1, 2, 2, 3)))

    tasks = [
        Task(t.name, larger(t.train), larger(t.test), larger(t.validation), t.classes)
        for t in stream.tasks
    ]
    return Stream("noise", tasks, scale=1 / 255, sources=["noise"])


def test_a_training_step_of_a_convolutional_network():
    with jax.numpy_dtype_promotion("standard"):
        config = preset("split-cifar100", "tag-rmsprop").changed(dict(steps_per_call=1))
        engine = Engine(config.resolved(np.int32), colour_images(), 1)
        arguments = arguments_of_train(engine)
        for platform in PLATFORMS:
            text = exported(engine._train, platform, *arguments)
            check(text, platform)
            assert "stablehlo.convolution" in text


# That a slip would be seen.


@pytest.mark.parametrize("platform", PLATFORMS)
def test_doubles_are_seen(platform):
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((2,), jnp.float64)
        assert doubles(exported(jax.jit(lambda x: x * 2), platform, x))
        scalar = jax.ShapeDtypeStruct((), jnp.float64)
        assert doubles(exported(jax.jit(lambda x: x * 2), platform, scalar))


def test_custom_calls_are_seen():
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    assert custom_calls(exported(jax.jit(jnp.linalg.qr), "cuda", x)) - KERNELS["cuda"]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_jax_itself_refuses_a_callback(platform):
    """It has none for a platform that is not here; should it have, the text would name it."""
    x = jax.ShapeDtypeStruct((2,), jnp.float32)
    called = jax.jit(lambda x: jax.pure_callback(np.sin, x, x))
    with pytest.raises(ValueError, match=r"backend|custom call|callback"):
        exported(called, platform, x)
