"""What a run is made of: settings that belong to one part each, and what they do to a step."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import train
from train import optimizers, settings
from train.errors import UserError
from train.methods import METHODS
from train.models import MODELS
from train.optimizers import OPTIMIZERS
from train.paper.presets import preset
from train.run.config import Config, RunSettings, read_record
from train.run.engine import Engine, evaluated_params
from train.run.step import rate_factor
from train.settings import Part
from train.streams import STREAMS

from .conftest import make_stream


def test_no_two_parts_share_the_name_of_a_setting():
    """Else a config.json, and a command line, could not say which is meant."""
    owners: dict[str, str] = {}
    for kind, known in (
        *(("stream", STREAMS), ("method", METHODS), ("optimizer", OPTIMIZERS), ("model", MODELS)),
        ("run", {"": RunSettings()}),
    ):
        for part in known.values():
            for name in settings.hints(part):
                assert owners.setdefault(name, kind) == kind

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Clash:
        epochs: int = 1

        def __call__(self, tasks):
            return optax.sgd(0.1)

    with pytest.raises(UserError, match="The setting epochs of the run has the name of a setting"):
        dataclasses.replace(preset("rotated-digits", "sgd"), optimizer=Part("clash", Clash()))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["naive", "er"])
def test_a_config_is_read_as_it_was_written(optimizer, method):
    config = preset("five-datasets", optimizer, method)
    written = json.loads(json.dumps(config.flat()))
    assert read_record(written, "a.json") == config.record
    fields = {name: written[name] for name in written if name not in config.names()}
    assert config.with_fields(fields, "a.json") == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(b=3.0), "b is no setting of rotated-digits, naive, sgd, mlp. Valid: "),
        (dict(learning_rat=3.0), "Did you mean learning_rate?"),
        (dict(learning_rate=0.0), "--learning-rate must be above 0, and is 0.0"),
        (dict(momentum=1.0), r"--momentum must lie in \[0, 1\)"),
        (dict(batch_size=0), "--batch-size must be at least 1"),
        (dict(average=1.0), r"--average must lie in \[0, 1\)"),
        (dict(clip=0.0), "--clip must be above 0"),
        (dict(schedule="cosin"), "Did you mean cosine?"),
        (dict(schedule_over="task"), "needs a --schedule or a --warmup"),
        (dict(warmup=float("nan")), "must be finite"),
    ],
)
def test_what_cannot_be_is_said(changes, message):
    with pytest.raises(UserError, match=message):
        preset("rotated-digits", "sgd").changed(changes)


@pytest.mark.parametrize(
    "changes",
    [
        dict(b=3.0, relatedness="uniform"),
        dict(num_gradients=2),
        dict(alpha_scope="leaf", relatedness="age"),
        dict(bank="compressed", relatedness="self"),
        dict(rows=3),
        dict(nu_dtype="bfloat16", bank="clustered"),
    ],
)
def test_a_setting_of_tag_that_would_change_nothing_is_refused(changes):
    with pytest.raises(UserError, match=r"would change nothing with --(relatedness|bank)"):
        preset("rotated-digits", "tag-rmsprop").changed(changes)


@pytest.mark.parametrize(
    ("changes", "way_out"),
    [
        (dict(bank="compressed", alpha_scope="leaf"), "choose scope='global', or bank='full'"),
        (dict(bank="clustered", relatedness="uniform"), "choose relatedness='cosine', or bank="),
    ],
)
def test_a_bank_that_cannot_serve_a_relatedness_is_refused(changes, way_out):
    with pytest.raises(UserError, match=way_out):
        preset("rotated-digits", "tag-rmsprop").changed(changes)


def test_a_bank_by_name():
    def bank(**changes):
        optimizer = preset("rotated-digits", "tag-rmsprop").changed(changes).optimizer
        params = jax.ShapeDtypeStruct((100, 100), "float32")
        return jax.eval_shape(optimizers.make(optimizer.value, 10).init, params)[0].bank

    assert bank()["nu"].shape == (10, 100, 100)
    assert bank(bank="compressed")["nu"].codes.dtype == np.uint8
    assert bank(bank="clustered", rows=3).rows["nu"].shape == (3, 100, 100)


def test_a_record_of_an_unknown_field_is_refused_and_of_an_outside_part_is_not():
    fields = preset("rotated-digits", "sgd").flat()
    with pytest.raises(UserError, match=r"a\.json: unknown field b\."):
        read_record(fields | {"b": 3.0}, "a.json")
    record = read_record(fields | {"optimizer": "mine:make", "b": 3.0}, "a.json")
    assert (record["b"], record.label) == (3.0, "mine:make")
    with pytest.raises(UserError, match=r"a\.json: epochs must be int"):
        read_record(fields | {"epochs": "three"}, "a.json")


PARAMS = {"w": jnp.array([1.0, -2.0]), "b": jnp.array(0.5)}
GRADS = [{"w": jnp.array([0.3, k]), "b": jnp.array(-0.1 * k)} for k in (1.0, 2.0, -1.5)]


def steps(tx):
    tx, params = optax.with_extra_args_support(tx), PARAMS
    state = tx.init(params)
    for grads in GRADS:
        updates, state = tx.update(grads, state, params, task_id=0)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize(
    ("name", "changes", "same"),
    [
        ("sgd", dict(momentum=0.9), optax.sgd(0.1, momentum=0.9)),
        ("adagrad", {}, optax.adagrad(0.1, initial_accumulator_value=0.0, eps=1e-8)),
        ("rmsprop", dict(eps_in_sqrt=False), optax.rmsprop(0.1, 0.99, 1e-8, eps_in_sqrt=False)),
        ("rmsprop", dict(momentum=0.5), optax.rmsprop(0.1, 0.99, 1e-8, momentum=0.5)),
        ("adam", dict(eps_in_sqrt=False), optax.adam(0.1, eps=1e-8)),
        (
            "adam",
            dict(eps_in_sqrt=False, weight_decay=0.3),
            optax.adamw(0.1, eps=1e-8, weight_decay=0.3),
        ),
        ("tag-rmsprop", {}, optax.rmsprop(0.1, 0.99, 1e-8)),  # One task alone.
    ],
)
def test_named_optimizers_are_those_of_optax(name, changes, same):
    given = dataclasses.replace(OPTIMIZERS[name], learning_rate=0.1, **changes)
    ours, theirs = steps(optimizers.make(given, 2)), steps(same)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), ours, theirs)


def test_schedules_along_the_stream_and_anew_in_every_task():
    def factors(**changes):
        factor = rate_factor(RunSettings(**changes), [4, 6])
        return [
            [round(float(factor(jnp.int32(task), jnp.int32(k))), 3) for k in range(steps)]
            for task, steps in enumerate((4, 6))
        ]

    linear = factors(schedule="linear")
    assert linear == [[1.0, 0.9, 0.8, 0.7], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]]
    anew = factors(schedule="linear", schedule_over="task")
    assert anew == [[1.0, 0.75, 0.5, 0.25], [1.0, 0.833, 0.667, 0.5, 0.333, 0.167]]
    cosine = factors(schedule="cosine", schedule_over="task")
    assert cosine[0] == [1.0, 0.854, 0.5, 0.146]
    rising = factors(warmup=0.5, schedule_over="task")
    assert rising == [[0.5, 1.0, 1.0, 1.0], [0.333, 0.667, 1.0, 1.0, 1.0, 1.0]]
    assert rate_factor(RunSettings(), [4, 6]) is None


def learned(config: Config, count: int = 3):
    engine = Engine(config.changed({"steps_per_call": 1}), make_stream())
    states = [engine.init((1,))]
    for number in range(count):
        before = jax.tree.map(jnp.copy, states[-1])  # A step donates what it is given.
        state, _ = engine.train(states[-1], (1,), 0, range(number, number + 1))
        states[-1] = before
        states.append(state)
    return states


@pytest.mark.ci
def test_the_average_is_the_plain_one(tiny):
    states = learned(tiny.changed({"average": 0.75}))
    average = states[0].params
    for state in states[1:]:
        average = jax.tree.map(lambda a, p: 0.75 * a + 0.25 * p, average, state.params)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7),
        average,
        evaluated_params(states[-1]),
    )
    assert evaluated_params(learned(tiny, 1)[-1]) is not None


@pytest.mark.ci
def test_a_schedule_scales_the_steps_and_a_clip_their_gradients(tiny):
    sgd = preset("rotated-digits", "sgd").changed(
        dict(hidden=(8,), batch_size=4, learning_rate=0.1)
    )

    def moved(config, number=0):
        before, after = learned(config, number + 1)[-2:]
        return float(optax.tree.norm(optax.tree.sub(after.params, before.params)))

    half = sgd.changed(dict(schedule="linear", schedule_over="task"))
    steps = Engine(half, make_stream()).steps()[0]
    later = learned(half, 2)
    assert moved(half) == pytest.approx(moved(sgd))
    full = optax.tree.sub(learned(sgd, 2)[-1].params, learned(sgd, 2)[-2].params)
    scaled = optax.tree.sub(later[-1].params, later[-2].params)
    ratio = optax.tree.norm(scaled) / optax.tree.norm(full)
    assert float(ratio) == pytest.approx(1 - 1 / steps, rel=1e-4)
    assert moved(sgd.changed({"clip": 1e-3})) == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.ci
def test_bfloat16_arithmetic_keeps_parameters_in_float32(tiny):
    state = learned(tiny.changed({"compute_dtype": "bfloat16"}), 2)[-1]
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    exact = learned(tiny, 2)[-1]
    distance = optax.tree.norm(optax.tree.sub(state.params, exact.params))
    assert 0 < float(distance) < 0.05


def test_storage_types_reach_tag(tiny):
    state = learned(tiny.changed(dict(mu_dtype="bfloat16", nu_dtype="float16")), 1)[-1]
    kinds = {leaf.dtype for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim > 1}
    assert {jnp.dtype("bfloat16"), jnp.dtype("float16")} <= kinds


def test_capacity_below_the_tasks_is_refused(tiny):
    with pytest.raises(UserError, match="--capacity 2 is less than the 3 tasks of noise"):
        Engine(tiny.changed({"capacity": 2}), make_stream())


def test_a_network_with_too_few_outputs_is_refused_before_anything_is_written(tmp_path):
    from flax import nnx

    def net(rngs):
        return nnx.Sequential(lambda x: x.reshape(len(x), -1), nnx.Linear(16, 3, rngs=rngs))

    with pytest.raises(UserError, match="has 3 outputs, and the stream needs 6"):
        train.fit(make_stream(), net, optax.sgd(0.1), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
