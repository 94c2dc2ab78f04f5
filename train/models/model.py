"""What a network is: two functions over plain trees, made from any library's module."""

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from train.errors import UserError

Answer: TypeAlias = tuple[Any, Any]  # Outputs, and stats.


@dataclasses.dataclass(frozen=True)
class Model:
    """A network: how it begins and what it answers. Params and stats are nested dicts of arrays.

    >>> def init(key):
    ...     return {"slope": jax.random.normal(key)}, {}
    >>> def apply(params, stats, x, *, train, key):
    ...     return params["slope"] * x, stats
    >>> line = Model(init, apply)
    """

    init: Callable[[jax.Array], tuple[Any, Any]]
    """`init(key)`: the parameters, which are learned, and the stats: all else that it remembers."""
    apply: Callable[..., tuple[Any, Any]]
    """`apply(params, stats, x, *, train, key)`: the outputs for a batch, and the stats after it.

    A pure function. The key is a new one at every step, and None in evaluation.
    """


# What a module consists of: parameters, the two parts of a random stream, everything else.
_PARTS = (nnx.Param, nnx.RngKey, nnx.RngCount, ...)


def from_nnx(factory: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """A model of what `factory(rngs)` makes: `nnx.Param` is learned, other variables are stats.

    Random streams are neither: at every step each begins anew, with a key made of the step's key
    and its position. The module is put into its `train()` or `eval()` mode; if it asks for `train`,
    `training`, `deterministic` or `rngs` when it is called, it gets that, too.
    """

    def build(key: jax.Array) -> nnx.Module:
        module = factory(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise _no_model(f"a {type(module).__name__} came back for rngs")
        nnx.pop(module, nnx.Intermediate)
        return module

    @functools.cache
    def structure() -> tuple[dict[bool, Any], list[Any]]:
        module = nnx.eval_shape(lambda: build(jax.random.key(0)))
        graphdefs = {}
        for train, set_mode in ((True, module.train), (False, module.eval)):
            set_mode()
            graphdefs[train] = nnx.graphdef(module)
        return graphdefs, [nnx.to_pure_dict(part) for part in nnx.split(module, *_PARTS)[1:]]

    def init(key: jax.Array) -> tuple[Any, Any]:
        _, params, _, _, stats = nnx.split(build(key), *_PARTS)
        return _plain(nnx.to_pure_dict(params)), _plain(nnx.to_pure_dict(stats))

    def apply(params: Any, stats: Any, x: Any, *, train: bool, key: Any = None) -> Answer:
        graphdefs, (params_like, keys, counts, stats_like) = structure()
        if train and key is None and keys:
            raise ValueError("This model draws random numbers: it needs a key in training.")
        drawn = jax.random.key(0) if key is None else key  # In evaluation, always the same.
        streams = [
            jax.random.split(made, like.shape) if like.shape else made
            for i, like in enumerate(jax.tree.leaves(keys))
            for made in [jax.random.fold_in(drawn, i)]
        ]
        # Without the copy, a gradient taken outside sees variables of another trace written to.
        module = nnx.merge(
            graphdefs[train],
            _select(params_like, params),
            _select(stats_like, stats),
            jax.tree.unflatten(jax.tree.structure(keys), streams),
            jax.tree.map(lambda count: jnp.zeros(count.shape, count.dtype), counts),
            copy=True,
        )
        options = _mode(module, train)
        if "rngs" in _parameters(module) and not (train and key is None):
            options["rngs"] = nnx.Rngs(drawn)
        outputs = module(x, **options)  # pyright: ignore[reportCallIssue]
        after = nnx.to_pure_dict(nnx.split(module, *_PARTS)[-1])
        return outputs, _like(stats, _plain(after))

    return Model(init, apply)


def from_linen(module: linen.Module) -> Callable[[jax.ShapeDtypeStruct], Model]:
    """Of a Linen module, what makes its model once it is known what comes in.

    Stats are its collections other than "params". If its `__call__` asks for `train`, `training` or
    `deterministic`, it gets that.

    >>> model = from_linen(linen.Dense(2))(jax.ShapeDtypeStruct((3,), jnp.float32))
    >>> jax.tree.map(jnp.shape, model.init(jax.random.key(0)))
    ({'bias': (2,), 'kernel': (3, 2)}, {})
    """

    def model(inputs: jax.ShapeDtypeStruct) -> Model:
        def init(key: jax.Array) -> tuple[Any, Any]:
            example = jnp.zeros((1, *inputs.shape), inputs.dtype)
            variables = module.init(key, example, **_mode(module, train=False))
            variables = _plain(linen.meta.unbox(variables))
            params = variables.pop("params", {})
            variables.pop("intermediates", None)
            return params, variables

        def apply(params: Any, stats: Any, x: Any, *, train: bool, key: Any = None) -> Answer:
            outputs, after = module.apply(
                {"params": params, **stats},
                x,
                # The stream that Linen takes for any that it is not given, such as "dropout".
                rngs=None if key is None else {"params": key},
                mutable=list(stats),
                **_mode(module, train),
            )
            return outputs, _like(stats, after)

        return Model(init, apply)

    return model


def from_equinox(make: Callable[[jax.Array], Any]) -> Model:
    """A model of what `make(key)` gives: an Equinox module, or one with its state.

    The module is called on one example, under `vmap` over the axis "batch"; with a key of its own
    in training, if it takes a `key`. Parameters are its float arrays, by their paths; stats are its
    other arrays, and those of the state.
    """
    try:
        import equinox as eqx  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise UserError(
            "A model that takes a key is an Equinox module: pip install equinox."
        ) from error

    def build(key: jax.Array) -> tuple[Any, Any]:
        made = make(key)
        module, state = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(module, eqx.Module):
            raise _no_model(f"a {type(module).__name__} came back for key")
        return module, state

    def named(module: Any, state: Any) -> dict[str, Any]:
        """The leaves in their order, arrays and others; a space is in no path."""
        leaves = jax.tree_util.tree_leaves_with_path(module)
        found = {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves}
        return found | {f"state {i}": leaf for i, leaf in enumerate(jax.tree.leaves(state))}

    @functools.cache
    def structure() -> tuple[Any, dict[str, Any]]:
        made = eqx.filter_eval_shape(lambda: build(jax.random.key(0)))
        return jax.tree.structure(made), named(*made)

    def init(key: jax.Array) -> tuple[Any, Any]:
        params, stats = {}, {}
        for name, leaf in named(*build(key)).items():
            if eqx.is_inexact_array(leaf) and not name.startswith("state "):
                params[name] = jnp.asarray(leaf)
            elif isinstance(leaf, jax.Array | np.ndarray):
                stats[name] = jnp.asarray(leaf)
        return params, stats

    def apply(params: Any, stats: Any, x: Any, *, train: bool, key: Any = None) -> Answer:
        treedef, leaves = structure()
        arrays = {**params, **stats}
        filled = [arrays.get(name, leaf) for name, leaf in leaves.items()]
        module, state = jax.tree.unflatten(treedef, filled)
        module = eqx.nn.inference_mode(module, value=not train)
        takes_key = "key" in _parameters(module)
        keys = jax.random.split(key, len(x)) if takes_key and train and key is not None else None

        def one(x: Any, state: Any, key: Any) -> tuple[Any, Any]:
            options = {"key": key} if takes_key else {}
            return (module(x, **options), None) if state is None else module(x, state, **options)

        over_batch = jax.vmap(one, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
        outputs, state = over_batch(x, state, keys)
        return outputs, _like(stats, {**stats, **named(None, state)})

    return Model(init, apply)


def as_model(given: Any, inputs: jax.ShapeDtypeStruct, outputs: int) -> Model:
    """The model that a user means, for examples of this shape and type and so many outputs.

    A Model; a Linen module; or a function, whose parameters without defaults say what it is: one
    that takes `rngs` returns an NNX module, one that takes `key` an Equinox module, any other a
    Model or a Linen module. All may take `inputs` and `outputs`.
    """
    if isinstance(given, Model):
        return given
    if isinstance(given, linen.Module):
        return from_linen(given)(inputs)
    equinox = sys.modules.get("equinox")  # It has made the module, or there is none.
    if isinstance(given, nnx.Module) or (equinox and isinstance(given, equinox.Module)):
        raise _no_model(f"this is a {type(given).__name__} that is made already")
    if not callable(given):
        raise _no_model(f"{given!r} is none of these")
    # Of a class its constructor, whose parameters the metaclass of NNX hides.
    function = functools.partial(given.__init__, None) if isinstance(given, type) else given
    known = {"inputs": inputs, "outputs": outputs}
    asked = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    call = functools.partial(given, **{name: known[name] for name in asked if name in known})
    match [name for name in asked if name not in known]:
        case []:
            made = call()
            if not isinstance(made, Model | linen.Module | types.FunctionType):
                came = f"a {type(made).__name__} came back"
                raise _no_model(f"{came} for {', '.join(asked) or 'nothing'}")
            return as_model(made, inputs, outputs)
        case ["key"]:
            return from_equinox(lambda key: call(key=key))
        case [name] if name == "rngs" or asked == [name]:
            return from_nnx(lambda rngs: call(**{name: rngs}))
        case unknown:
            raise _no_model(f"this one asks for {', '.join(unknown)}, which needs a default")


def _no_model(fault: str) -> UserError:
    return UserError(
        "A model must be a function that takes rngs and returns an NNX module, one that takes key "
        f"and returns an Equinox module, a Linen module, or a train.Model: {fault}."
    )


def with_compute_dtype(model: Model, dtype_name: str) -> Model:
    """The model with arithmetic in another type: parameters, stats and outputs stay what they are.

    Float parameters and inputs are cast; stats are not, since running means would lose what a step
    adds. A layer that mixes the two computes in float32, as `nnx.BatchNorm` does by default.
    """
    dtype = jnp.dtype(dtype_name)
    if dtype == jnp.float32:
        return model

    def cast(tree: Any, to: Any) -> Any:
        return jax.tree.map(
            lambda x: x.astype(to) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
        )

    def apply(params: Any, stats: Any, x: Any, *, train: bool, key: Any = None) -> Answer:
        params, x = cast((params, x), dtype)
        outputs, after = model.apply(params, stats, x, train=train, key=key)
        return cast(outputs, jnp.float32), _like(stats, after)

    return Model(model.init, apply)


def _parameters(module: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(type(module).__call__).parameters


def _mode(module: Any, train: bool) -> dict[str, Any]:
    """Whether the module learns, under the names by which its call asks."""
    modes = {"train": train, "training": train, "deterministic": not train}
    return {name: mode for name, mode in modes.items() if name in _parameters(module)}


def _plain(tree: Any) -> Any:
    """Nested dicts with strings for keys, which are numbers where NNX has lists."""
    if isinstance(tree, Mapping):
        return {str(name): _plain(value) for name, value in tree.items()}
    return jax.tree.map(jnp.asarray, tree)


def _select(like: Any, tree: Any) -> Any:
    """What `like` has, of a plain tree, under the keys that `like` has for it."""
    if isinstance(like, Mapping):
        return {name: _select(value, tree[str(name)]) for name, value in like.items()}
    return tree


def _like(stats: Any, after: Any) -> Any:
    """The stats after a call in the structure and types that they had before it."""
    after = _select(stats, after)
    return jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), stats, after)
