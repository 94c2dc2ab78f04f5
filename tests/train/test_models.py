"""Modules of three libraries as models; the networks against their published sizes, a dumb
reference, torch, and files of weights."""

import dataclasses
import functools
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from train.errors import UserError
from train.models import (
    MODELS,
    Model,
    as_model,
    from_equinox,
    from_linen,
    named_weights,
    with_compute_dtype,
)
from train.models.model import from_nnx
from train.models.nets import BasicBlock, OneConvBlock
from train.models.pretrained import import_weights, torch_name

pytestmark = pytest.mark.ci

KEY = jax.random.key(7)
RESNETS = [name for name in MODELS if name != "mlp"]


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@functools.cache
def net(name, *, outputs=10, side=None, **settings):
    side = side or getattr(MODELS[name], "min_side", 8)
    return dataclasses.replace(MODELS[name], **settings)(floats(side, side, 3), outputs)


@functools.cache
def shapes(name, **options):
    return jax.eval_shape(net(name, **options).init, KEY)


def build(name, *, seed=0, **options):
    """A model with values from numpy, which draws faster than JAX compiles its drawing."""
    return net(name, **options), *filled(shapes(name, **options), seed)


def filled(tree, seed=0):
    """The same structure with values that are as good as any."""
    rng = np.random.default_rng(seed)

    def fill(x):
        scale = np.prod(x.shape[:-1]) ** -0.5
        low = -1.0 if x.ndim > 1 else 0.5
        return jnp.asarray(rng.uniform(low * scale, 1.5 * scale, x.shape), x.dtype)

    return jax.tree.map(fill, tree)


def images(n, side, seed=0):
    return np.random.default_rng(seed).random((n, side, side, 3)).astype(np.float32)


def leaves(tree):
    return {
        tuple(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


# Structure and initialisation.


@pytest.mark.parametrize(
    ("name", "outputs", "size", "count"),
    [
        ("resnet18-reduced", 100, 496_680, 48),
        ("resnet18-reduced-2conv", 100, 1_109_240, 62),
        ("resnet18", 1000, 11_689_512, 62),
        ("mlp", 10, 8 * 8 * 3 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10, 6),
    ],
)
def test_sizes(name, outputs, size, count):
    params, stats = shapes(name, outputs=outputs)
    assert sum(x.size for x in jax.tree.leaves(params)) == size
    assert len(jax.tree.leaves(params)) == count
    assert {x.dtype for x in jax.tree.leaves((params, stats))} == {np.dtype("float32")}
    assert all(type(key) is str for path in leaves(params) for key in path)


@pytest.mark.parametrize(
    ("side", "features"), [(8, 160), (32, 160), (56, 160), (64, 640), (84, 640), (224, 7840)]
)
def test_features_by_image_size(side, features):
    """The authors' network averages windows of 4x4: 640 features at 84x84."""
    image = jax.ShapeDtypeStruct((side, side, 3), jnp.float32)
    params, _ = jax.eval_shape(MODELS["resnet18-reduced"](image, 100).init, jax.random.key(0))
    assert sum(x.size for x in jax.tree.leaves(params)) == 496_680 + (features - 160) * 100


def test_windows_are_those_of_a_pooling_layer():
    module = MODELS["resnet18-reduced"].module((84, 84, 3), 10, nnx.Rngs(0))
    module.eval()
    x = jax.random.normal(jax.random.key(1), (2, 84, 84, 3))
    found = module(x)
    x = jax.nn.relu(module.stem_bn(module.stem(x)))
    for block in module.blocks.values():
        x = block(x)
    assert x.shape == (2, 11, 11, 160)
    pooled = nnx.avg_pool(x, (4, 4), strides=(4, 4))
    np.testing.assert_allclose(found, module.output(pooled.reshape(2, 640)), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def initial():
    """The reduced ResNet of each of two seeds."""
    model = net("resnet18-reduced")
    with jax.enable_x64(False):
        return [model.init(jax.random.key(seed)) for seed in (0, 1)]


def test_initial_values(initial):
    params, stats = map(leaves, initial[0])
    for path, leaf in params.items():
        kernel = params.get((*path[:-1], "kernel"))
        if kernel is None:
            assert path[-1] in ("scale", "bias")
            np.testing.assert_array_equal(leaf, 1.0 if path[-1] == "scale" else 0.0)
        else:
            limit = np.prod(kernel.shape[:-1]) ** -0.5
            assert np.abs(leaf).max() <= limit
            if leaf.size >= 500:
                assert np.abs(leaf).max() > 0.98 * limit
                np.testing.assert_allclose(np.std(leaf), limit / 3**0.5, rtol=0.1)
    for path, leaf in stats.items():
        np.testing.assert_array_equal(leaf, 1.0 if path[-1] == "var" else 0.0)


def test_seeds_begin_where_they_always_did(initial):
    """Numbers of the published runs, which a seed must go on to mean."""

    def first(params, *path):
        return [round(float(x), 9) for x in leaves(params)[path].ravel()[:2]]

    mlp = [net("mlp", side=2).init(jax.random.key(seed))[0] for seed in (0, 1)]
    found = {
        "dense": [first(params, "hidden", "dense1", "kernel") for params in mlp],
        "stem": [first(params, "stem", "kernel") for params, _ in initial],
        "block": [
            first(params, "blocks", "stage4_block1", "conv", "kernel") for params, _ in initial
        ],
        "output": [first(params, "output", "bias") for params, _ in initial],
    }
    expected = {
        "dense": [[0.197635144, -0.183378771], [0.116979972, -0.153093278]],
        "stem": [[0.131756768, -0.122252516], [0.0779866502, -0.102062181]],
        "block": [[0.00244376063, 0.00525457459], [-0.0222584605, 0.01399069]],
        "output": [[-0.0729017258, 0.0187900811], [0.0534016006, 0.00774822477]],
    }
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-8)


def test_the_seed_decides_and_neither_dropout_nor_x64_does():
    model = net("mlp", side=2, hidden=(4,))
    params, _ = model.init(jax.random.key(1))
    with jax.enable_x64(True):
        again, _ = model.init(jax.random.key(1))
    dropping, _ = net("mlp", side=2, hidden=(4,), dropout=0.5).init(jax.random.key(1))
    other, _ = model.init(jax.random.key(2))
    chex.assert_trees_all_equal(params, again, dropping)
    different = jax.tree.map(lambda a, b: bool((a != b).any()), params, other)
    assert all(jax.tree.leaves(different))


def test_many_hidden_layers_keep_their_order():
    model = net("mlp", side=2, outputs=3, hidden=tuple(range(5, 17)))
    params, stats = jax.eval_shape(model.init, KEY)
    assert params["hidden"]["dense12"]["kernel"].shape == (15, 16)
    apply = functools.partial(model.apply, train=False, key=None)
    assert jax.eval_shape(apply, params, stats, images(1, 2))[0].shape == (1, 3)


def test_a_perceptron_takes_any_floats():
    params, _ = jax.eval_shape(MODELS["mlp"](floats(5), 3).init, KEY)
    assert params["hidden"]["dense1"]["kernel"].shape == (5, 100)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("resnet18-reduced", floats(32, 7, 3), r"resnet18-reduced .* \(32, 7, 3\).* at least 8"),
        ("resnet18", floats(28, 28, 3), "at least 32"),
        ("resnet18", floats(28, 28), r"\(28, 28\)"),
        ("mlp", floats(0), "some of them"),
        ("mlp", jax.ShapeDtypeStruct((5,), jnp.int32), "int32.*floats"),
    ],
)
def test_inputs_that_do_not_fit(name, inputs, message):
    with pytest.raises(UserError, match=message):
        MODELS[name](inputs, 10)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mlp", {"dropout": 1.0}, r"--dropout must lie in \[0, 1\), and is 1.0."),
        ("mlp", {"dropout": float("nan")}, "--dropout"),
        ("mlp", {"hidden": (3, 0)}, "--hidden must be sizes above 0"),
        ("mlp", {"hidden": (2**31,)}, "--hidden must be at most"),
        ("resnet18", {"pretrained": "a\nb"}, "--pretrained must be printable"),
    ],
)
def test_settings_that_cannot_be(name, settings, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(MODELS[name], **settings)


# The forward pass, against a reference that is slow and plain.


class Reference:
    """A ResNet in float64 numpy, one output pixel at a time."""

    def __init__(self, params, stats, train):
        as_float64 = functools.partial(np.asarray, dtype=np.float64)
        self.params = jax.tree.map(as_float64, params)
        self.stats = jax.tree.map(as_float64, stats)
        self.train = train

    def conv(self, x, kernel, stride):
        size = len(kernel)
        pad = size // 2
        x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        rows = range(0, x.shape[1] - size + 1, stride)
        return np.stack(
            [
                np.stack([np.tensordot(x[:, i : i + size, j : j + size], kernel, 3) for j in rows])
                for i in rows
            ]
        ).transpose(2, 0, 1, 3)

    def bn(self, x, params, stats):
        mean, var = stats["mean"], stats["var"]
        if self.train:
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            stats["mean"] = 0.9 * stats["mean"] + 0.1 * mean
            stats["var"] = 0.9 * stats["var"] + 0.1 * var
        return (x - mean) / np.sqrt(var + 1e-5) * params["scale"] + params["bias"]

    def block(self, x, name, stride):
        p, s = self.params["blocks"][name], self.stats["blocks"][name]
        shortcut = x
        if "shortcut" in p:
            shortcut = self.conv(x, p["shortcut"]["kernel"], stride)
        if "shortcut_bn" in p:
            shortcut = self.bn(shortcut, p["shortcut_bn"], s["shortcut_bn"])
        if "conv" in p:
            y = self.bn(relu(self.conv(x, p["conv"]["kernel"], stride)), p["bn1"], s["bn1"])
            return self.bn(relu(y + shortcut), p["bn2"], s["bn2"])
        y = relu(self.bn(self.conv(x, p["conv1"]["kernel"], stride), p["bn1"], s["bn1"]))
        return relu(self.bn(self.conv(y, p["conv2"]["kernel"], 1), p["bn2"], s["bn2"]) + shortcut)

    def __call__(self, x):
        p = self.params
        large = len(p["stem"]["kernel"]) == 7
        x = self.conv(x, p["stem"]["kernel"], 2 if large else 1)
        x = relu(self.bn(x, p["stem_bn"], self.stats["stem_bn"]))
        if large:
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
            rows = range(0, x.shape[1], 2)
            x = np.stack(
                [
                    np.stack([padded[:, i : i + 3, j : j + 3].max((1, 2)) for j in rows])
                    for i in rows
                ]
            ).transpose(2, 0, 1, 3)
        for stage in (1, 2, 3, 4):
            x = self.block(x, f"stage{stage}_block1", 1 if stage == 1 else 2)
            x = self.block(x, f"stage{stage}_block2", 1)
        return x.mean((1, 2)) @ p["output"]["kernel"] + p["output"]["bias"]


def relu(x):
    return np.maximum(x, 0)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", RESNETS)
def test_resnets_are_the_reference(name, train):
    model, params, stats = build(name)
    x = images(4, MODELS[name].min_side)
    apply = jax.jit(functools.partial(model.apply, train=train, key=None))
    logits, new_stats = apply(params, stats, jnp.asarray(x))
    reference = Reference(params, stats, train)
    np.testing.assert_allclose(logits, reference(x), rtol=1e-3, atol=1e-4)
    chex.assert_trees_all_close(new_stats, reference.stats, rtol=1e-3, atol=1e-5)


def test_mlp_is_the_reference():
    model, params, stats = build("mlp", side=2)
    x = images(4, 2)
    logits, _ = model.apply(params, stats, jnp.asarray(x), train=True)
    h = x.reshape(4, -1)
    for layer in params["hidden"].values():
        h = relu(h @ layer["kernel"] + layer["bias"])
    expected = h @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_odd_images():
    model, params, stats = build("resnet18-reduced", side=13)
    apply = functools.partial(model.apply, train=False, key=None)
    logits, _ = jax.eval_shape(apply, params, stats, jnp.asarray(images(2, 13)))
    assert logits.shape == (2, 10)


# Dropout.


def test_dropout_keeps_the_mean_and_is_off_in_evaluation():
    plain, params, stats = build("mlp", side=2, outputs=5, hidden=(50,))
    model = net("mlp", side=2, outputs=5, hidden=(50,), dropout=0.25)
    x = jnp.asarray(images(1, 2))
    expected, _ = plain.apply(params, stats, x, train=False)
    logits, _ = model.apply(params, stats, x, train=False)
    np.testing.assert_array_equal(logits, expected)

    # Behind a single hidden layer, logits are sums of independent terms that are there or not.
    draws = 4000
    apply = functools.partial(model.apply, params, stats, x, train=True)
    logits = jax.vmap(lambda key: apply(key=key)[0][0])(jax.random.split(KEY, draws))
    hidden, output = params["hidden"]["dense1"], params["output"]
    h = relu(x.reshape(-1) @ hidden["kernel"] + hidden["bias"])
    std = np.sqrt(0.25 / 0.75 * h**2 @ output["kernel"] ** 2)
    np.testing.assert_allclose(np.std(logits, axis=0), std, rtol=0.1)
    assert (np.abs(logits.mean(0) - expected[0]) < 4 * std / draws**0.5).all()


def test_every_layer_and_key_drops_its_own_units():
    class Drops(nnx.Module):
        """Two layers, and one of them used twice."""

        def __init__(self, rngs):
            self.first, self.second = (nnx.Dropout(0.3, rngs=rngs) for _ in range(2))

        def __call__(self, x):
            return jnp.stack([self.first(x), self.first(x), self.second(x)])

    model, ones = from_nnx(lambda rngs: Drops(rngs)), jnp.ones(10_000)
    keys = jax.random.key(0), jax.random.key(1)
    masks = np.concatenate([model.apply({}, {}, ones, train=True, key=key)[0] for key in keys])
    np.testing.assert_allclose(np.unique(masks), [0, 1 / 0.7], rtol=1e-6)
    np.testing.assert_allclose((masks == 0).mean(1), 0.3, atol=0.02)
    np.testing.assert_allclose(np.corrcoef(masks)[np.triu_indices(6, 1)], 0, atol=0.05)


@pytest.mark.parametrize("block", [OneConvBlock, BasicBlock])
def test_a_block_drops_twice(block, monkeypatch):
    draws = []

    def bernoulli(*args, **kwargs):
        draws.append(kwargs["shape"])
        return drawn(*args, **kwargs)

    drawn = jax.random.bernoulli
    monkeypatch.setattr(jax.random, "bernoulli", bernoulli)
    model = from_nnx(lambda rngs: block(3, 4, 2, 0.5, rngs=rngs))
    params, stats = jax.jit(model.init)(KEY)
    apply = jax.jit(functools.partial(model.apply, train=True))
    y = np.asarray(apply(params, stats, jnp.asarray(images(8, 8)), key=KEY)[0])
    assert [tuple(shape) for shape in draws] == [(8, 4, 4, 4)] * 2
    assert y.shape == (8, 4, 4, 4)
    # Of the units that relu leaves, dropout takes half.
    kept = 0.5 if block is OneConvBlock else 0.25
    np.testing.assert_allclose((y != 0).mean(), kept, atol=0.1)


def test_dropout_without_a_key_is_an_error():
    model, params, stats = build("mlp", side=2, dropout=0.5)
    with pytest.raises(ValueError, match="needs a key"):
        model.apply(params, stats, jnp.asarray(images(1, 2)), train=True, key=None)


def test_no_dropout_costs_nothing():
    model, params, stats = build("resnet18-reduced")
    x = jnp.asarray(images(2, 8))
    with_key = jax.make_jaxpr(lambda key: model.apply(params, stats, x, train=True, key=key)[0])
    assert "random" not in str(with_key(KEY))


# Modules of others: each must be a pure function that learns.


class NnxNet(nnx.Module):
    """Dropout, batch norm, layers in a list, a stream and variables of its own."""

    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.noise = rngs.noise.fork()
        self.calls = nnx.Variable(jnp.uint8(3))

    def __call__(self, x, train):
        self.calls[...] = self.calls[...] + jnp.uint8(1)
        y = self.drop(nnx.relu(self.norm(self.layers[0](x))))
        if train:
            y = y + 0.1 * jax.random.normal(self.noise(), y.shape, y.dtype)
        self.seen = nnx.Intermediate(y)
        return self.layers[1](y)


class LinenNet(linen.Module):
    outputs: int

    @linen.compact
    def __call__(self, x, training):
        calls = self.variable("counts", "calls", lambda: jnp.uint8(3))
        if training:
            calls.value += jnp.uint8(1)
        y = linen.BatchNorm(use_running_average=not training)(linen.Dense(8)(x))
        y = linen.Dropout(0.5, deterministic=not training)(linen.relu(y))
        self.sow("intermediates", "seen", y)
        return linen.Dense(self.outputs)(y)


class Transformer(nnx.Module):
    """Token ids to one answer a sequence."""

    def __init__(self, inputs, outputs, rngs):
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.position = nnx.Param(rngs.params.normal((*inputs.shape, 8)))
        self.attention = nnx.MultiHeadAttention(
            2, 8, dropout_rate=0.1, decode=False, use_bias=False, rngs=rngs
        )
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.output = nnx.Linear(8, outputs, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens) + self.position[...]
        x = x + self.attention(self.norm(x))
        return self.output(x.mean(1))


def equinox_mlp(inputs, outputs, key):
    eqx = pytest.importorskip("equinox")
    return eqx.nn.MLP(inputs.shape[0], outputs, width_size=8, depth=1, key=key)


@functools.cache
def equinox_class():
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):
        layers: list
        norm: eqx.nn.BatchNorm
        drop: eqx.nn.Dropout
        shift: jax.Array

        def __init__(self, inputs, outputs, key):
            keys = jax.random.split(key)
            self.layers = [eqx.nn.Linear(*inputs.shape, 8, key=keys[0])]
            self.layers += [eqx.nn.Linear(8, outputs, key=keys[1])]
            self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
            self.drop = eqx.nn.Dropout(0.5)
            self.shift = jnp.arange(8)

        def __call__(self, x, state, key):
            y, state = self.norm(self.layers[0](x) + self.shift, state)
            return self.layers[1](self.drop(jax.nn.relu(y), key=key)), state

    return eqx.nn.make_with_state(Net)


def equinox_net(inputs, outputs, key):
    return equinox_class()(inputs, outputs, key)


TOKENS = jax.ShapeDtypeStruct((5,), jnp.int32)
OTHERS = {
    "nnx": (NnxNet, floats(6)),
    "linen": (LinenNet(2), floats(6)),
    "equinox": (equinox_mlp, floats(6)),
    "equinox with state": (equinox_net, floats(6)),
    "transformer": (Transformer, TOKENS),
    "mlp": (dataclasses.replace(MODELS["mlp"], hidden=(8,), dropout=0.1), floats(6)),
    "resnet": (MODELS["resnet18-reduced"], floats(8, 8, 3)),
}
DRAWS = {"nnx", "linen", "equinox with state", "transformer", "mlp"}
KEEPS = {"nnx", "linen", "equinox with state", "resnet"}


@functools.cache
def other(name):
    given, inputs = OTHERS[name]
    model = as_model(given, inputs, 2)
    if name == "resnet":
        return model, *filled(jax.eval_shape(model.init, KEY))
    with jax.enable_x64(False):
        return model, *model.init(jax.random.key(0))


def examples(name, n=4):
    inputs = OTHERS[name][1]
    x = np.random.default_rng(0).random((n, *inputs.shape))
    return jnp.asarray(x * 10, inputs.dtype)


def learn(model, steps=5):
    """A function that learns the examples for some steps: jit, scan and grad at once."""

    def loss(params, stats, x, key):
        outputs, stats = model.apply(params, stats, x, train=True, key=key)
        return ((outputs - 3) ** 2).mean(), stats

    def one_step(x, carry, key):
        params, stats = carry
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, stats, x, key)
        params = jax.tree.map(lambda p, g: p - 0.001 * g, params, grads)
        return (params, stats), (value, norms(grads))

    def run(params, stats, x, key):
        keys = jax.random.split(key, steps)
        return jax.lax.scan(functools.partial(one_step, x), (params, stats), keys)

    return run


@pytest.mark.parametrize("name", OTHERS)
def test_seeds_learn_side_by_side_in_plain_trees(name):
    model, params, stats = other(name)
    assert all(type(key) is str for path in leaves({**params, **stats}) for key in path)
    x, keys = examples(name), jax.random.split(KEY, 2)
    run = jax.jit(jax.vmap(learn(model), in_axes=(0, 0, None, 0)))
    runs = []
    for seed in (1, 2):
        begun = stacked((params, stats), (filled(params, seed), stats))
        runs.append(run(*begun, x, keys))
        chex.assert_trees_all_equal_shapes_and_dtypes(runs[-1][0], begun)
    ((new_params, new_stats), (values, sizes)), other_run = jax.device_get(runs)
    # What learns beside it changes nothing.
    np.testing.assert_array_equal(values[0], other_run[1][0][0])
    if name not in DRAWS:
        assert (values[:, -1] < values[:, 0]).all()
    # A bias in front of batch norm moves nothing.
    reached = [(size > 0).all() for size in jax.tree.leaves(sizes)]
    assert sum(reached) >= len(reached) - 1
    moved = jax.tree.map(lambda old, new: (np.asarray(old) != new).any(), stats, new_stats)
    assert any(jax.tree.leaves(moved)) == (name in KEEPS)

    evaluate = jax.jit(
        jax.vmap(functools.partial(model.apply, train=False, key=None), in_axes=(0, 0, None))
    )
    outputs, kept = evaluate(new_params, new_stats, x)
    assert outputs.shape == (2, 4, 2)
    assert outputs.dtype == jnp.float32
    chex.assert_trees_all_equal_shapes_and_dtypes(kept, new_stats)
    among_others, _ = evaluate(new_params, new_stats, x.at[1:].set(0))
    np.testing.assert_allclose(among_others[:, 0], outputs[:, 0], rtol=1e-5)


def stacked(*trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_a_step_is_a_function_of_its_key(name):
    model, params, stats = other(name)
    x, keys = examples(name), [jax.random.key(seed) for seed in (0, 0, 1)]
    apply = jax.jit(functools.partial(model.apply, params, stats, x, train=True))
    outputs = [apply(key=key)[0] for key in keys]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert (outputs[0] != outputs[2]).any()
    evaluate = jax.make_jaxpr(lambda key: model.apply(params, stats, x, train=False, key=key)[0])
    assert "random_bits" not in str(evaluate(KEY))


@pytest.mark.parametrize("name", ["nnx", "resnet"])
def test_two_seeds_are_each_alone(name):
    model, params, stats = other(name)
    trees = [(params, stats), (filled(params, 1), stats)]
    x, keys = examples(name), jax.random.split(KEY, 2)

    def one(params, stats, key):
        return model.apply(params, stats, x, train=True, key=key)

    both = jax.jit(jax.vmap(one))(*stacked(*trees), keys)
    expected = stacked(*(jax.jit(one)(*tree, key) for tree, key in zip(trees, keys, strict=True)))
    # Batch norm over a single pixel of four images magnifies rounding.
    chex.assert_trees_all_close(both, expected, rtol=1e-2, atol=2e-3)


def test_what_nnx_keeps():
    model, params, stats = other("nnx")
    assert {".".join(path) for path in leaves(params)} == {
        *("layers.0.kernel", "layers.0.bias", "layers.1.kernel", "layers.1.bias"),
        *("norm.scale", "norm.bias"),
    }
    assert {path[0] for path in leaves(stats)} == {"norm", "calls"}
    assert stats["calls"].dtype == jnp.uint8
    apply = jax.jit(functools.partial(model.apply, train=True))
    _, after = apply(params, stats, examples("nnx"), key=KEY)
    assert int(after["calls"]) == 4
    chex.assert_trees_all_equal_shapes_and_dtypes(after, stats)


def test_the_numbers_of_an_nnx_module_are_its_own():
    model, params, stats = other("nnx")
    module = NnxNet(nnx.Rngs(0))
    chex.assert_trees_all_equal(params["layers"]["0"]["kernel"], module.layers[0].kernel[...])
    module.eval()
    outputs, _ = model.apply(params, stats, examples("nnx"), train=False, key=None)
    np.testing.assert_allclose(outputs, module(examples("nnx"), train=False), rtol=1e-6)


def test_an_nnx_module_that_asks_for_rngs_and_copies_of_a_layer():
    class Copies(nnx.Module):
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(None, 0), out_axes=0)
        def _drops(self, rngs):
            return nnx.Dropout(0.5, rngs=rngs)

        def __init__(self, rngs):
            self.drops = self._drops(rngs)

        def __call__(self, x, *, rngs, deterministic):
            each = nnx.vmap(lambda drop, x: drop(x), in_axes=(0, None))(self.drops, x)
            return each, x if deterministic else rngs.uniform(x.shape)

    model = from_nnx(Copies)
    assert model.init(KEY) == ({}, {})
    x = jnp.ones((1, 1000))
    train = jax.jit(functools.partial(model.apply, train=True))
    (each, uniform), _ = train({}, {}, x, key=KEY)
    np.testing.assert_allclose(np.corrcoef(each[:, 0])[np.triu_indices(3, 1)], 0, atol=0.15)
    assert len(np.unique(uniform)) > 900
    chex.assert_trees_all_equal(model.apply({}, {}, x, train=False)[0], (jnp.stack([x] * 3), x))


def test_what_linen_keeps():
    model, params, stats = other("linen")
    assert params.keys() == {"Dense_0", "Dense_1", "BatchNorm_0"}
    assert stats.keys() == {"batch_stats", "counts"}
    _, after = model.apply(params, stats, examples("linen"), train=True, key=KEY)
    assert after["counts"]["calls"] == jnp.uint8(4)
    assert isinstance(as_model(from_linen(LinenNet(2)), floats(6), 2), Model)


def test_what_equinox_keeps():
    model, params, stats = other("equinox with state")
    assert params.keys() == {
        *("layers[0].weight", "layers[0].bias", "layers[1].weight", "layers[1].bias"),
        *("norm.weight", "norm.bias"),
    }
    assert stats.keys() == {"shift", "state 0", "state 1", "state 2"}
    np.testing.assert_array_equal(stats["shift"], range(8))
    theirs = equinox_mlp(floats(6), 2, jax.random.key(0))
    model, params, _ = other("equinox")
    x = examples("equinox")
    np.testing.assert_allclose(model.apply(params, {}, x, train=True)[0], jax.vmap(theirs)(x), 1e-5)


# What users give.


def test_a_model_is_itself():
    model = Model(lambda key: ({}, {}), lambda params, stats, x, *, train, key: (x, stats))
    assert as_model(model, floats(6), 2) is model
    assert as_model(lambda: model, floats(6), 2) is model


@pytest.mark.parametrize(
    "given",
    [
        lambda rngs: nnx.Linear(6, 2, rngs=rngs),
        lambda r: nnx.Linear(6, 2, rngs=r),
        lambda inputs, outputs, rngs, bias=True: nnx.Linear(*inputs.shape, outputs, rngs=rngs),
        lambda outputs: linen.Dense(outputs),
        lambda outputs, bias=True: from_linen(linen.Dense(outputs, use_bias=bias)),
        lambda inputs, outputs: MODELS["mlp"](inputs, outputs),
        linen.Dense(2),
        equinox_mlp,
        from_equinox(lambda key: equinox_mlp(floats(6), 2, key)),
    ],
)
def test_ways_to_give_a_model(given):
    model = as_model(given, floats(6), 2)
    params, stats = model.init(KEY)
    outputs, _ = model.apply(params, stats, jnp.ones((3, 6)), train=True, key=KEY)
    assert outputs.shape == (3, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "3 is none of these"),
        (linen.Dense, "asks for features, which needs a default|came back"),
        (lambda width, rngs: None, "asks for width"),
        (lambda rngs, key: None, "asks for rngs, key"),
        (lambda: "net", "a str came back for nothing"),
        (
            lambda outputs: nnx.Linear(6, outputs, rngs=nnx.Rngs(0)),
            "a Linear came back for outputs",
        ),
        (lambda rngs: linen.Dense(2), "a Dense came back for rngs"),
        (lambda key: linen.Dense(2), "a Dense came back for key"),
        (nnx.Linear(6, 2, rngs=nnx.Rngs(0)), "a Linear that is made already"),
        (equinox_mlp(floats(6), 2, KEY), "a MLP that is made already"),
    ],
)
def test_what_is_no_model(given, message):
    with pytest.raises(
        UserError, match=rf"A model must be a function that takes rngs.*: .*{message}"
    ):
        as_model(given, floats(6), 2).init(KEY)


def test_equinox_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "equinox", None)
    with pytest.raises(UserError, match="pip install equinox"):
        as_model(equinox_mlp, floats(6), 2)


# Arithmetic in other types.


@pytest.mark.parametrize("name", sorted({*OTHERS} - {"resnet"}))
def test_bfloat16(name):
    model, params, stats = other(name)
    assert with_compute_dtype(model, "float32") is model
    half = with_compute_dtype(model, "bfloat16")
    x = examples(name)
    full, less = (
        jax.jit(functools.partial(each.apply, train=False, key=None))(params, stats, x)[0]
        for each in (model, half)
    )
    assert less.dtype == jnp.float32
    assert 0 < np.abs(full - less).max() < 0.1 * np.abs(full).max()
    after, _ = jax.eval_shape(learn(half), params, stats, x, KEY)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, (params, stats))


def test_a_resnet_in_bfloat16_convolves_in_it():
    model, params, stats = build("resnet18-reduced")
    half = with_compute_dtype(model, "bfloat16")
    apply = functools.partial(half.apply, train=True, key=None)
    jaxpr = str(jax.make_jaxpr(apply)(params, stats, jnp.asarray(images(2, 8))))
    results = [line for line in jaxpr.splitlines() if "= conv_general_dilated[" in line]
    assert len(results) == 12
    assert all(":bf16[" in line for line in results)
    x = jnp.asarray(images(4, 8))
    logits, _ = jax.jit(functools.partial(half.apply, train=False, key=None))(params, stats, x)
    np.testing.assert_allclose(logits, Reference(params, stats, False)(np.asarray(x)), rtol=0.1)


def norms(tree):
    return jax.tree.map(jnp.linalg.norm, tree)


# Weights by name, and from files.


@pytest.mark.parametrize("name", OTHERS)
def test_named_weights_are_all_of_a_model(name):
    _, params, stats = other(name)
    weights = named_weights(params, stats)
    assert all(isinstance(array, np.ndarray) for array in weights.values())
    arrays = jax.tree.leaves((params, stats))
    assert len(weights) == len(arrays)
    chex.assert_trees_all_equal(list(weights.values()), arrays)


def test_a_model_starts_from_weights(small, tmp_path):
    params, stats = filled(shapes("resnet18"))
    save(tmp_path / "weights.npz", state_dict(*filled((params, stats), seed=1)))
    pretrained = net("resnet18", pretrained=str(tmp_path / "weights.npz"))
    begun = jax.eval_shape(pretrained.init, KEY)
    chex.assert_trees_all_equal_shapes_and_dtypes(begun, (params, stats))
    save(tmp_path / "small.npz", state_dict(*small))
    with pytest.raises(UserError, match="does not fit the model"):
        net("resnet18", pretrained=str(tmp_path / "small.npz"))


def state_dict(params, stats):
    """The tensors under torchvision's names, in its layout."""
    axes = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
    arrays = leaves(params) | leaves(stats)
    tensors = {
        torch_name(path): np.ascontiguousarray(np.asarray(x).transpose(axes[x.ndim]))
        for path, x in arrays.items()
    }
    return tensors | {"bn1.num_batches_tracked": np.array(7)}


def save(path, tensors):
    if path.suffix == ".npz":
        np.savez(path, **tensors)
    else:
        pytest.importorskip("safetensors.numpy").save_file(tensors, path)


@pytest.fixture
def small():
    """Any model with torchvision's blocks will do, and the reduced one is quick to build."""
    return build("resnet18-reduced-2conv")[1:]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_weights_come_back(suffix, small, tmp_path):
    params, stats = small
    stored = filled(small, seed=1)
    save(tmp_path / f"weights{suffix}", state_dict(*stored))
    loaded = import_weights(tmp_path / f"weights{suffix}", params, stats, skip_output=False)
    chex.assert_trees_all_equal(loaded, stored)
    chex.assert_trees_all_equal_shapes_and_dtypes(loaded, small)


def test_the_output_layer_stays_fresh(small, tmp_path):
    params, stats = small
    stored = filled(params, seed=1)
    tensors = state_dict(stored, stats)
    tensors["fc.weight"] = np.zeros((1000, 160), np.float32)
    save(tmp_path / "weights.npz", tensors)
    loaded, _ = import_weights(tmp_path / "weights.npz", params, stats)
    chex.assert_trees_all_equal(loaded["output"], params["output"])
    chex.assert_trees_all_equal(loaded["stem"], stored["stem"])
    with pytest.raises(UserError, match=r"fc.weight has shape \(1000, 160\), the model \(10, 160"):
        import_weights(tmp_path / "weights.npz", params, stats, skip_output=False)


def test_every_fault_is_named(small, tmp_path):
    tensors = state_dict(*small)
    del tensors["layer1.0.conv1.weight"], tensors["bn1.running_var"], tensors["fc.bias"]
    tensors["layer5.0.conv1.weight"] = np.zeros(1, np.float32)
    tensors["layer2.0.downsample.0.weight"] = np.zeros((40, 20, 3, 3), np.float32)
    save(tmp_path / "weights.npz", tensors)
    with pytest.raises(UserError) as error:
        import_weights(tmp_path / "weights.npz", *small)
    assert str(error.value).endswith(
        "does not fit the model: layer1.0.conv1.weight is missing; bn1.running_var is missing; "
        "layer5.0.conv1.weight is not in the model; layer2.0.downsample.0.weight has shape "
        "(40, 20, 3, 3), the model (40, 20, 1, 1)."
    )


@pytest.mark.parametrize("content", [b"", b"no weights at all", b"PK\x03\x04 cut short"])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pth"])
def test_files_that_are_something_else(suffix, content, small, tmp_path):
    if suffix != ".npz":
        pytest.importorskip({".pth": "torch", ".safetensors": "safetensors"}[suffix])
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not a"):
        import_weights(path, *small)


def test_pickles_are_refused(small, tmp_path):
    np.savez(tmp_path / "weights.npz", x=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="plain arrays"):
        import_weights(tmp_path / "weights.npz", *small)


def test_single_arrays_are_refused(small, tmp_path):
    with (tmp_path / "weights.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(UserError, match="single array"):
        import_weights(tmp_path / "weights.npz", *small)


def test_files_that_are_nowhere_or_unknown(small, tmp_path):
    with pytest.raises(UserError, match="no file"):
        import_weights(tmp_path / "weights.npz", *small)
    with pytest.raises(UserError, match=r"\.safetensors, \.npz"):
        import_weights(tmp_path / "weights.h5", *small)


@pytest.mark.parametrize(("suffix", "package"), [(".pth", "torch"), (".safetensors", "safetensor")])
def test_packages_that_are_missing(suffix, package, small, tmp_path, monkeypatch):
    for module in ("torch", "safetensors"):
        monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(b"")
    with pytest.raises(UserError, match=f"needs.*{package}"):
        import_weights(path, *small)


# Torch itself, where it is installed.


def test_resnet18_is_torchvisions(tmp_path):
    torch = pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    theirs = torchvision.models.resnet18()
    for name, buffer in theirs.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    model, params, stats = build("resnet18", outputs=1000)
    state = import_weights(tmp_path / "weights.pth", params, stats, skip_output=False)
    x = images(4, 65)
    for train in (False, True):
        expected = theirs.train(train)(torch.from_numpy(x.transpose(0, 3, 1, 2)))
        logits, _ = model.apply(*state, jnp.asarray(x), train=train, key=None)
        np.testing.assert_allclose(logits, expected.detach().numpy(), rtol=1e-4, atol=1e-4)


def test_other_torch_files_are_refused(small, tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"state_dict": {}}, tmp_path / "nested.pth")
    with pytest.raises(UserError, match="something else"):
        import_weights(tmp_path / "nested.pth", *small)
    torch.save(functools.partial(print, "run"), tmp_path / "code.pth")
    with pytest.raises(UserError, match="not a file of torch weights"):
        import_weights(tmp_path / "code.pth", *small)
