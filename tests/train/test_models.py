"""The networks against their published sizes, a dumb reference, torch, and files of weights."""

import functools
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from train.errors import UserError
from train.models import MODELS, apply_model, build_model
from train.models.layers import Dropout
from train.models.pretrained import import_weights, torch_name
from train.models.resnet import BasicBlock, OneConvBlock

RESNETS = [name for name in MODELS if name != "mlp"]


@functools.cache
def build(name, *, outputs=10, side=None, seed=0, dropout=0.0):
    """A model with values from numpy, which draws faster than JAX compiles its drawing."""
    side = side or MODELS[name].min_side
    model = jax.eval_shape(
        lambda: build_model(
            name, image_shape=(side, side, 3), num_outputs=outputs, seed=0, dropout=dropout
        )
    )
    return filled(model, seed)


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
        ("mlp", 10, 3 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10, 6),
    ],
)
def test_sizes(name, outputs, size, count):
    side = MODELS[name].min_side
    params, batch_stats = jax.eval_shape(
        lambda: build_model(name, image_shape=(side, side, 3), num_outputs=outputs, seed=0)[1:]
    )
    assert sum(x.size for x in jax.tree.leaves(params)) == size
    assert len(jax.tree.leaves(params)) == count
    assert {x.dtype for x in jax.tree.leaves((params, batch_stats))} == {np.dtype("float32")}
    assert all(type(key) is str for path in leaves(params) for key in path)


@pytest.mark.parametrize("name", ["resnet18-reduced", "mlp"])
def test_initial_values(name):
    _, params, batch_stats = build_model(name, image_shape=(8, 8, 3), num_outputs=10, seed=0)
    params, batch_stats = leaves(params), leaves(batch_stats)
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
    for path, leaf in batch_stats.items():
        np.testing.assert_array_equal(leaf, 1.0 if path[-1] == "var" else 0.0)


def test_the_seed_decides_and_x64_does_not():
    options = dict(image_shape=(2, 2, 1), num_outputs=2, hidden=(4,))
    build_mlp = functools.partial(build_model, "mlp", **options)
    _, params, _ = build_mlp(seed=1)
    with jax.enable_x64(False):
        _, again, _ = build_mlp(seed=1)
    _, other, _ = build_mlp(seed=2)
    chex.assert_trees_all_equal(params, again)
    different = jax.tree.map(lambda a, b: bool((a != b).any()), params, other)
    assert all(jax.tree.leaves(different))


def test_hidden_sizes():
    options = dict(image_shape=(4, 4, 1), num_outputs=3, seed=0, hidden=(8, 7, 6))
    params = jax.eval_shape(lambda: build_model("mlp", **options)[1])
    shapes = [x.shape for path, x in leaves(params).items() if path[-1] == "kernel"]
    assert shapes == [(16, 8), (8, 7), (7, 6), (6, 3)]


def test_many_hidden_layers_keep_their_order():
    def logits():
        options = dict(image_shape=(2, 2, 1), num_outputs=3, seed=0, hidden=range(5, 17))
        return apply_model(*build_model("mlp", **options), jnp.ones((1, 2, 2, 1)), train=False)[0]

    assert jax.eval_shape(logits).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18-reducd", {}, "Did you mean resnet18-reduced?"),
        ("resnet18-reduced", {"image_shape": (32, 7, 3)}, "at least 8"),
        ("resnet18", {"image_shape": (28, 28, 3)}, "at least 32"),
        ("mlp", {"image_shape": (28, 28)}, r"\(28, 28\)"),
        ("mlp", {"dropout": 1.0}, "below 1"),
    ],
)
def test_what_cannot_be_built(name, options, message):
    options = {"image_shape": (32, 32, 3), "num_outputs": 10, "seed": 0, **options}
    with pytest.raises(UserError, match=message):
        build_model(name, **options)


# The forward pass, against a reference that is slow and plain.


class Reference:
    """A ResNet in float64 numpy, one output pixel at a time."""

    def __init__(self, params, batch_stats, train):
        as_float64 = functools.partial(np.asarray, dtype=np.float64)
        self.params = jax.tree.map(as_float64, params)
        self.stats = jax.tree.map(as_float64, batch_stats)
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
    graphdef, params, batch_stats = build(name)
    x = images(4, MODELS[name].min_side)
    apply = jax.jit(functools.partial(apply_model, graphdef, train=train))
    logits, new_stats = apply(params, batch_stats, jnp.asarray(x))
    reference = Reference(params, batch_stats, train)
    np.testing.assert_allclose(logits, reference(x), rtol=1e-3, atol=1e-4)
    chex.assert_trees_all_close(new_stats, reference.stats, rtol=1e-3, atol=1e-5)


def test_mlp_is_the_reference():
    graphdef, params, batch_stats = build("mlp", side=2)
    x = images(4, 2)
    logits, _ = apply_model(graphdef, params, batch_stats, jnp.asarray(x), train=True)
    h = x.reshape(4, -1)
    for layer in params["hidden"].values():
        h = relu(h @ layer["kernel"] + layer["bias"])
    expected = h @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_odd_images():
    model = build("resnet18-reduced", side=13)
    apply = functools.partial(apply_model, *model, train=False)
    logits, _ = jax.eval_shape(apply, jnp.asarray(images(2, 13)))
    assert logits.shape == (2, 10)


def test_images_of_any_type_give_float32():
    model = build("mlp", side=2)
    x = np.arange(12).reshape(1, 2, 2, 3)
    with jax.enable_x64(True):
        images = [jnp.asarray(x, dtype) for dtype in ("uint8", "float64")]
        logits = [apply_model(*model, image, train=False)[0] for image in images]
    assert logits[0].dtype == logits[1].dtype == jnp.float32
    np.testing.assert_array_equal(*logits)


# Dropout.


def test_dropout_keeps_the_mean_and_is_off_in_evaluation():
    options = dict(image_shape=(2, 2, 3), num_outputs=5, seed=0, hidden=(50,))
    plain, model = build_model("mlp", **options), build_model("mlp", **options, dropout=0.25)
    chex.assert_trees_all_equal(model[1], plain[1])
    x = jnp.asarray(images(1, 2))
    expected, _ = apply_model(*plain, x, train=False)
    logits, _ = apply_model(*model, x, train=False)
    np.testing.assert_array_equal(logits, expected)

    # Behind a single hidden layer, logits are sums of independent terms that are there or not.
    draws = 4000
    keys = jax.random.split(jax.random.key(0), draws)
    apply = functools.partial(apply_model, *model, x, train=True)
    logits = jax.vmap(lambda key: apply(dropout_key=key)[0][0])(keys)
    hidden, output = model[1]["hidden"]["dense1"], model[1]["output"]
    h = relu(x.reshape(-1) @ hidden["kernel"] + hidden["bias"])
    std = np.sqrt(0.25 / 0.75 * h**2 @ output["kernel"] ** 2)
    np.testing.assert_allclose(np.std(logits, axis=0), std, rtol=0.1)
    assert (np.abs(logits.mean(0) - expected[0]) < 4 * std / draws**0.5).all()


def test_every_layer_and_key_drops_its_own_units():
    ones = jnp.ones(10_000, jnp.float32)
    drop, other = Dropout(0.3, jax.random.key(0)), Dropout(0.3, jax.random.key(1))
    masks = np.stack([drop(ones), drop(ones), other(ones)])
    np.testing.assert_allclose(np.unique(masks), [0, 1 / 0.7], rtol=1e-6)
    np.testing.assert_allclose((masks == 0).mean(1), 0.3, atol=0.02)
    correlation = np.corrcoef(masks)
    np.testing.assert_allclose(correlation[np.triu_indices(3, 1)], 0, atol=0.05)
    again = Dropout(0.3, jax.random.key(0))
    with jax.enable_x64(False):
        np.testing.assert_array_equal(again(ones), masks[0])


def test_a_model_passes_its_key_on():
    model = build("mlp", side=2, dropout=0.5)
    apply = functools.partial(apply_model, *model, jnp.asarray(images(2, 2)), train=True)
    logits = [apply(dropout_key=jax.random.key(seed))[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(logits[0], logits[1])
    assert (logits[0] != logits[2]).any()


@pytest.mark.parametrize("block", [OneConvBlock, BasicBlock])
def test_a_block_drops_twice(block):
    layer = block(3, 4, 2, rngs=nnx.Rngs(0))
    drop = Dropout(0.5, jax.random.key(0))
    y = np.asarray(layer(jnp.asarray(images(8, 8)), True, drop))
    assert drop.calls == 2
    assert y.shape == (8, 4, 4, 4)
    # Of the units that relu leaves, dropout takes half.
    kept = 0.5 if block is OneConvBlock else 0.25
    np.testing.assert_allclose((y != 0).mean(), kept, atol=0.1)


def test_dropout_without_a_key_is_an_error():
    with pytest.raises(ValueError, match="needs a dropout_key"):
        apply_model(*build("mlp", side=2, dropout=0.5), jnp.asarray(images(1, 2)), train=True)


def test_no_dropout_costs_nothing():
    model = build("resnet18-reduced")
    x = jnp.asarray(images(2, 8))
    with_key = jax.make_jaxpr(lambda key: apply_model(*model, x, train=True, dropout_key=key)[0])(
        jax.random.key(0)
    )
    assert "random" not in str(with_key)


# Transformations.


def loss(graphdef, params, batch_stats, x):
    logits, batch_stats = apply_model(graphdef, params, batch_stats, x, train=True)
    return (logits**2).mean(), batch_stats


@pytest.mark.parametrize("name", ["resnet18-reduced", "mlp"])
def test_jit_grad_scan_and_shapes(name):
    graphdef, params, batch_stats = build(name, side=8)
    step = functools.partial(loss, graphdef)
    x = jnp.asarray(images(4, 8))
    shapes = jax.eval_shape(step, params, batch_stats, x)
    chex.assert_trees_all_equal_shapes_and_dtypes(shapes[1], batch_stats)

    @jax.jit
    def train(params, batch_stats):
        def body(carry, x):
            params, batch_stats = carry
            grad = jax.value_and_grad(step, has_aux=True)
            (value, batch_stats), grads = grad(params, batch_stats, x)
            params = jax.tree.map(lambda p, g: p - jnp.float32(0.001) * g, params, grads)
            return (params, batch_stats), (value, norms(grads))

        return jax.lax.scan(body, (params, batch_stats), jnp.stack([x] * 5))

    (new_params, _), (values, sizes) = train(params, batch_stats)
    chex.assert_trees_all_equal_shapes_and_dtypes(new_params, params)
    assert values[-1] < values[0]
    assert all((size > 0).all() for size in jax.tree.leaves(sizes))


def norms(tree):
    return jax.tree.map(jnp.linalg.norm, tree)


@pytest.mark.parametrize("name", ["resnet18-reduced", "mlp"])
def test_vmap_over_seeds(name):
    models = [build(name, side=8, seed=seed) for seed in (0, 1)]
    assert models[0][0] == models[1][0]
    x = jnp.asarray(images(4, 8))
    apply = jax.jit(functools.partial(apply_model, models[0][0], images=x, train=True))
    stack = functools.partial(jax.tree.map, lambda *leaves: jnp.stack(leaves))
    both = jax.vmap(apply)(stack(*(m[1] for m in models)), stack(*(m[2] for m in models)))
    expected = stack(*(apply(params, stats) for _, params, stats in models))
    # Batch norm over a single pixel of four images magnifies rounding.
    chex.assert_trees_all_close(both, expected, rtol=1e-2, atol=1e-3)


# Weights from files.


def state_dict(params, batch_stats):
    """The tensors under torchvision's names, in its layout."""
    axes = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
    arrays = leaves(params) | leaves(batch_stats)
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
    params, batch_stats = small
    stored = filled(small, seed=1)
    save(tmp_path / f"weights{suffix}", state_dict(*stored))
    loaded = import_weights(tmp_path / f"weights{suffix}", params, batch_stats, skip_output=False)
    chex.assert_trees_all_equal(loaded, stored)
    chex.assert_trees_all_equal_shapes_and_dtypes(loaded, small)


def test_the_output_layer_stays_fresh(small, tmp_path):
    params, batch_stats = small
    stored = filled(params, seed=1)
    tensors = state_dict(stored, batch_stats)
    tensors["fc.weight"] = np.zeros((1000, 160), np.float32)
    save(tmp_path / "weights.npz", tensors)
    loaded, _ = import_weights(tmp_path / "weights.npz", params, batch_stats)
    chex.assert_trees_all_equal(loaded["output"], params["output"])
    chex.assert_trees_all_equal(loaded["stem"], stored["stem"])
    with pytest.raises(UserError, match=r"fc.weight has shape \(1000, 160\), the model \(10, 160"):
        import_weights(tmp_path / "weights.npz", params, batch_stats, skip_output=False)


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
    graphdef, params, batch_stats = build("resnet18", outputs=1000)
    state = import_weights(tmp_path / "weights.pth", params, batch_stats, skip_output=False)
    x = images(4, 65)
    for train in (False, True):
        expected = theirs.train(train)(torch.from_numpy(x.transpose(0, 3, 1, 2)))
        logits, _ = apply_model(graphdef, *state, jnp.asarray(x), train=train)
        np.testing.assert_allclose(logits, expected.detach().numpy(), rtol=1e-4, atol=1e-4)


def test_other_torch_files_are_refused(small, tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"state_dict": {}}, tmp_path / "nested.pth")
    with pytest.raises(UserError, match="something else"):
        import_weights(tmp_path / "nested.pth", *small)
    torch.save(functools.partial(print, "run"), tmp_path / "code.pth")
    with pytest.raises(UserError, match="not a file of torch weights"):
        import_weights(tmp_path / "code.pth", *small)
