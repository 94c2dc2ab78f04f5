"""A run on a mesh: the same numbers, each device with its share, and a resume on any other mesh."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from train.errors import UserError
from train.launch.display import Display
from train.launch.seeds import run_seeds
from train.run import batches, loop
from train.run.config import Config
from train.run.devices import Devices, axis_sizes, choose_axes
from train.run.engine import Engine
from train.run.layout import Layout, make_layout
from train.run.rundir import RunDirectory, read_result

from .conftest import make_stream

# Axes of the mesh, and the one that the tasks are spread over.
LAYOUTS = [
    ({"data": 4}, "none"),
    ({"data": 4}, "data"),
    ({"data": 2, "model": 2}, "data"),
    ({"data": 2, "model": 2}, "model"),
    pytest.param({"data": 2, "model": 2}, "none", marks=pytest.mark.slow),
    pytest.param({"model": 4}, "none", marks=pytest.mark.slow),
    pytest.param({"data": 4, "model": 2}, "data", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def stream():
    return make_stream()


def learn(config, stream, layout=None, seeds=(1,)):
    """Losses, accuracies and the final state of a whole stream."""
    engine = Engine(config, stream, len(seeds), layout or Layout())
    state, losses = engine.init(seeds), []
    for stage, steps in enumerate(engine.steps()):
        for start in range(0, steps, engine.steps_per_call):
            some = range(start, min(start + engine.steps_per_call, steps))
            state, found = engine.train(state, seeds, stage, some)
            losses.append(np.asarray(found.loss))
        state = engine.end_stage(state, seeds, stage)
    assert engine.traced["train"] == 1
    return np.concatenate(losses), engine.accuracies(state, range(3)), state


@pytest.mark.parametrize(("sizes", "bank_axis"), LAYOUTS)
def test_a_mesh_learns_the_same(tiny, stream, sizes, bank_axis):
    config = dataclasses.replace(tiny, steps_per_call=2)
    losses, accuracies, state = learn(config, stream)
    found, found_accuracies, found_state = learn(config, stream, make_layout(sizes, bank_axis))
    np.testing.assert_allclose(found, losses, rtol=2e-5)
    np.testing.assert_array_equal(found_accuracies, accuracies)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-6),
        jax.device_get(found_state.params),
        jax.device_get(state.params),
    )
    np.testing.assert_allclose(found_state.alpha_sum, state.alpha_sum, rtol=1e-3)


def test_where_the_order_of_sums_is_the_same_so_is_every_bit(tiny, stream):
    losses, _, state = learn(tiny, stream)
    found, _, found_state = learn(tiny, stream, make_layout({"data": 1, "model": 1}))
    np.testing.assert_array_equal(found, losses)
    jax.tree.map(np.testing.assert_array_equal, found_state, state)


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        ("er", "tag-rmsprop"),
        pytest.param("ewc", "tag-adam", marks=pytest.mark.slow),
        pytest.param("a-gem", "sgd", marks=pytest.mark.slow),
        pytest.param("ogd", "rmsprop", marks=pytest.mark.slow),
        pytest.param("multitask", "tag-self", marks=pytest.mark.slow),
    ],
)
def test_every_method_learns_the_same_on_a_mesh(tiny, stream, method, optimizer):
    config = dataclasses.replace(
        tiny, method=method, optimizer=optimizer, directions_per_task=3, steps_per_call=1
    )
    losses, accuracies, _ = learn(config, stream)
    found, found_accuracies, _ = learn(config, stream, make_layout({"data": 2, "model": 2}))
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    np.testing.assert_array_equal(found_accuracies, accuracies)


def test_dropout_is_the_same_on_a_mesh(tiny, stream):
    config = dataclasses.replace(tiny, optimizer="sgd", dropout=0.5, steps_per_call=1)
    losses, _, _ = learn(config, stream)
    found, _, _ = learn(config, stream, make_layout({"data": 2, "model": 2}))
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    dry, _, _ = learn(dataclasses.replace(config, dropout=0.0), stream)
    assert np.abs(dry / losses - 1).max() > 0.01  # Else this would show nothing.


@pytest.mark.slow
def test_convolutions_and_batch_norm_on_a_mesh():
    """Statistics are those of the whole batch, not of a device's part of it."""
    rng = np.random.default_rng(0)
    stream = make_stream(num_tasks=2, train=8, test=4)
    images = rng.integers(0, 255, (8, 8, 8, 3), np.uint8)

    def larger(task):
        def part(examples):
            return dataclasses.replace(examples, images=images)

        return dataclasses.replace(task, train=part(task.train), test=part(task.test))

    stream = dataclasses.replace(
        stream, tasks=[larger(task) for task in stream.tasks], image_shape=(8, 8, 3)
    )
    config = Config(optimizer="tag-rmsprop", num_tasks=2, batch_size=4, steps_per_call=1)
    states = {}
    for name, layout in (("one", Layout()), ("four", make_layout({"data": 2, "model": 2}, "data"))):
        engine = Engine(config, stream, layout=layout)
        state, _ = engine.train(engine.init((1,)), (1,), 0, range(1))
        states[name] = jax.device_get(state.batch_stats)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-2, atol=1e-5),
        states["four"],
        states["one"],
    )


def test_seeds_side_by_side_on_a_mesh(tiny, stream):
    config = dataclasses.replace(tiny, steps_per_call=2)
    losses, accuracies, _ = learn(config, stream, seeds=(1, 2))
    layout = make_layout({"data": 2, "model": 2}, "data")
    found, found_accuracies, state = learn(config, stream, layout, seeds=(1, 2))
    np.testing.assert_allclose(found, losses, rtol=2e-5)
    np.testing.assert_array_equal(found_accuracies, accuracies)
    bank = optax.tree.get(state.opt_state, "nu_bank")["hidden"]["dense1"]["kernel"]
    assert bank.shape == (2, 4, 16, 8)  # Two seeds; three tasks over two devices need four rows.
    assert bank.addressable_shards[0].data.shape == (2, 2, 8, 8)


def test_each_device_holds_its_share_from_the_start(tiny, stream):
    """64 tasks on 8 devices: an eighth of the bank on each, and no more in the step that runs."""
    many = make_stream(num_tasks=64, train=8, test=1)
    config = dataclasses.replace(tiny, num_tasks=64, batch_size=8, hidden=(64, 64))
    engine = Engine(config, many, layout=make_layout({"data": 8}, "data"))
    state = engine.init((1,))
    banks = [optax.tree.get(state.opt_state, name) for name in ("mu_bank", "nu_bank")]
    held = np.zeros(8, int)
    for leaf in jax.tree.leaves(banks):
        held += [shard.data.nbytes for shard in leaf.addressable_shards]
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(banks))
    np.testing.assert_array_equal(held, [total // 8] * 8)
    row = total // 128
    with engine.layout.active():
        batch = engine.layout.batch(
            lambda part: batches.take(
                {0: many.tasks[0].train},
                (1,),
                0,
                range(engine.steps_per_call),
                batch_size=8,
                of_batch=part,
            ),
            8,
            axis=2,
        )
        lowered = engine._train.lower(state, batch, np.int32(0), np.int32(1))
        memory = lowered.compile().memory_analysis()
    everything_else = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) - total
    assert memory.argument_size_in_bytes < total // 8 + everything_else + 10_000
    assert memory.temp_size_in_bytes < 8 * row < total // 8 + everything_else


def finish(config, stream, layout, path, console, stop_after=None):
    directory = RunDirectory(path / "seed-1", config, 1)
    run = loop.Run(
        Engine(config, stream, layout=layout),
        [directory],
        path / "checkpoints",
        checkpoint_every=3,
        keep=2,
        stop_after=stop_after,
        display=Display(console, "run", [7] * 3),
    )
    assert run.finish() == {}
    directory.close()
    return read_result(path / "seed-1")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (({"data": 4, "model": 2}, "data"), None),  # 8 devices to 1
        pytest.param(  # 1 to 4, tasks spread: the bank has one row more
            None, ({"data": 4}, "data"), marks=pytest.mark.slow
        ),
        pytest.param(
            ({"data": 2, "model": 2}, "none"),
            ({"data": 2, "model": 2}, "model"),
            marks=pytest.mark.slow,
        ),
        pytest.param(({"data": 4}, "data"), ({"data": 2}, "data"), marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_of_one_mesh_resumes_on_another(
    tiny, stream, tmp_path, console, before, after
):
    config = dataclasses.replace(tiny, steps_per_call=1)
    expected = finish(config, stream, Layout(), tmp_path / "one", console)
    first, second = (Layout() if each is None else make_layout(*each) for each in (before, after))
    finish(config, stream, first, tmp_path / "moved", console, stop_after=2)
    found = finish(config, stream, second, tmp_path / "moved", console)
    np.testing.assert_array_equal(found.accuracy, expected.accuracy)
    np.testing.assert_allclose(found.alpha, expected.alpha, rtol=1e-3)
    records = [
        (tmp_path / name / "seed-1/metrics.jsonl").read_text().count("\n")
        for name in ("one", "moved")
    ]
    assert records[0] == records[1]


def test_axes_are_checked_before_any_work(tiny):
    config = dataclasses.replace(tiny, batch_size=10)

    def refusal(**asked):
        with pytest.raises(UserError) as error:
            choose_axes(Devices(**asked), config, available=8)
        return str(error.value)

    assert refusal(mesh="data=4") == (
        "--mesh data=4 cannot split batches of 10 evenly: give --batch-size 8 or 12, or a mesh "
        "with one of data=1, data=2, data=5."
    )
    assert (
        refusal(mesh="data=5,model=2") == "--mesh data=5,model=2 needs 10 devices, and there are 8."
    )
    assert "Did you mean data?" in refusal(mesh="dta=2")
    assert "twice" in refusal(mesh="data=2,data=2")
    assert "write it as data=4" in refusal(mesh="4")
    assert "needs a mesh with that axis" in refusal(mesh="data=2", bank_axis="model")
    assert "--mesh is not given" in refusal(bank_axis="data")
    config = dataclasses.replace(config, optimizer="tag-self")
    assert "with tag-self it would change nothing" in refusal(mesh="data=2", bank_axis="data")
    assert choose_axes(Devices(mesh="auto"), config, available=8) == {"data": 5}
    assert choose_axes(Devices(), config, available=8) is None


@pytest.mark.parametrize("text", ["data", "data=0", "data=-1", "4", "data=2;model=2", ""])
def test_what_is_no_mesh_is_refused(text):
    with pytest.raises(UserError, match="write it as data=4"):
        axis_sizes(text)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dict(num_processes=2), "need --coordinator HOST:PORT"),
        (dict(coordinator="auto", process_id=1), "need --coordinator HOST:PORT"),
        (dict(coordinator="here"), "must be HOST:PORT or auto, and is 'here'"),
        (dict(coordinator="here:80"), "needs --num-processes N and --process-id I"),
        (dict(coordinator="here:80", num_processes=2, process_id=2), "between 0 and 1, and is 2"),
    ],
)
def test_processes_are_checked_before_any_work(asked, said):
    with pytest.raises(UserError, match=said):
        Devices(**asked)


def test_each_part_of_a_batch_is_read_once(stream):
    """However many devices share it; where the axis does not divide the batch, it is whole."""
    layout = make_layout({"data": 4, "model": 2})
    for size, slices in ((8, [(0, 2), (2, 4), (4, 6), (6, 8)]), (6, [(0, 6)])):
        read = []

        def make(part, size=size, read=read):
            read.append((part.start, part.stop))
            return batches.block(stream.tasks[0].train, 0, 0, size, part)

        found = layout.batch(make, size, axis=0)
        assert sorted(read) == slices
        whole = batches.block(stream.tasks[0].train, 0, 0, size)
        jax.tree.map(np.testing.assert_array_equal, found, whole)


def test_parameters_are_split_along_their_longest_fitting_axis():
    layout = make_layout({"data": 2, "model": 4})
    shapes = dict(kernel=(3, 3, 20, 40), odd=(3, 5), square=(8, 8), bias=(40,), tall=(16, 10))
    found = layout.params({k: jax.ShapeDtypeStruct(v, np.float32) for k, v in shapes.items()})
    assert {name: list(sharding.spec) for name, sharding in found.items()} == {
        "kernel": [None, None, None, "model"],
        "odd": [None, None],
        "square": [None, "model"],
        "bias": [None],
        "tall": ["model", None],
    }


def test_processes_for_seeds_and_a_mesh_exclude_each_other(tiny, tmp_path, console):
    with pytest.raises(UserError, match="drop --mesh"):
        run_seeds(tiny, (1, 2), None, console, "processes", devices=Devices(mesh="data=2"))
