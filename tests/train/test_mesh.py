"""A run on a mesh: the same numbers, each device with its share, and a resume on any other mesh."""

import contextlib
import dataclasses

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from train.errors import UserError
from train.launch.hosts import Hosts
from train.launch.jobs import Job, Places, Streams
from train.launch.seeds import choose_layout, run_seeds
from train.run import batches
from train.run.devices import Devices, Layout, axis_sizes, choose_axes
from train.run.directory import Keeping, RunDirectory
from train.run.engine import Engine
from train.run.loop import Run, SeedRun
from train.run.progress import Progress, RunProgress
from train.run.records import read_measured
from train.settings import Part
from train.streams import Stream, Task

from . import test_step
from .conftest import make_stream
from .test_methods import with_method

pytestmark = pytest.mark.ci

# Axes of the mesh, and the one that the tasks are spread over.
LAYOUTS = [
    ({"data": 2, "model": 2}, "data"),
    pytest.param({"data": 4}, "none", marks=pytest.mark.slow),
    pytest.param({"data": 4}, "data", marks=pytest.mark.slow),
    pytest.param({"data": 2, "model": 2}, "model", marks=pytest.mark.slow),
    pytest.param({"data": 2, "model": 2}, "none", marks=pytest.mark.slow),
    pytest.param({"model": 4}, "none", marks=pytest.mark.slow),
    pytest.param({"data": 4, "model": 2}, "data", marks=pytest.mark.slow),
]


def learn(engine, seeds=(1,)):
    """Losses, scores and the final state of a whole stream."""
    state, losses = test_step.learn(engine, seeds)
    return losses, engine.scores(state, range(3)), state


@pytest.mark.parametrize(("sizes", "bank_axis"), LAYOUTS)
def test_a_mesh_learns_the_same(tiny, engines, tiny_stream, sizes, bank_axis):
    one = engines(tiny.changed({"steps_per_call": 2}))
    losses, accuracies, state = learn(one)
    mesh = Engine(one.config, tiny_stream, layout=Layout(sizes, bank_axis))
    found, found_accuracies, found_state = learn(mesh)
    np.testing.assert_allclose(found, losses, rtol=2e-5)
    np.testing.assert_array_equal(found_accuracies, accuracies)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-6),
        jax.device_get(found_state.params),
        jax.device_get(state.params),
    )
    np.testing.assert_allclose(found_state.alpha_sum[:3], state.alpha_sum, rtol=1e-3)


def test_where_the_order_of_sums_is_the_same_so_is_every_bit(tiny, engines, tiny_stream):
    one = engines(tiny.changed({"steps_per_call": 2}))
    losses, _, state = learn(one)
    layout = Layout({"data": 1, "model": 1})
    found, _, found_state = learn(Engine(one.config, tiny_stream, layout=layout))
    np.testing.assert_array_equal(found, losses)
    jax.tree.map(np.testing.assert_array_equal, found_state, state)


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        ("er", "sgd"),
        pytest.param("er", "tag-rmsprop", marks=pytest.mark.slow),
        pytest.param("ewc", "tag-adam", marks=pytest.mark.slow),
        pytest.param("a-gem", "sgd", marks=pytest.mark.slow),
        pytest.param("ogd", "rmsprop", marks=pytest.mark.slow),
        pytest.param("multitask", "tag-self", marks=pytest.mark.slow),
    ],
)
def test_every_method_learns_the_same_on_a_mesh(tiny, engines, tiny_stream, method, optimizer):
    one = engines(with_method(tiny, method, optimizer))
    mesh = Engine(one.config, tiny_stream, layout=Layout({"data": 2, "model": 2}))
    (losses, accuracies, _), (found, found_accuracies, _) = learn(one), learn(mesh)
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    np.testing.assert_array_equal(found_accuracies, accuracies)


def test_dropout_is_the_same_on_a_mesh(tiny, engines, tiny_stream):
    dry = engines(with_method(tiny, "naive"))
    config = dry.config.changed({"dropout": 0.5})
    mesh = Engine(config, tiny_stream, layout=Layout({"data": 2, "model": 2}))
    losses, _, _ = learn(engines(config))
    np.testing.assert_allclose(learn(mesh)[0], losses, rtol=1e-4)
    assert np.abs(learn(dry)[0] / losses - 1).max() > 0.01  # Else this would show nothing.


class Convolutions(nnx.Module):
    """The least network with a convolution, and statistics of the whole batch."""

    def __init__(self, rngs, outputs):
        self.convolution = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.output = nnx.Linear(4, outputs, rngs=rngs)

    def __call__(self, images):
        return self.output(self.norm(self.convolution(images)).mean(axis=(1, 2)))


def test_convolutions_and_batch_norm_on_a_mesh(tiny):
    """Statistics are those of the whole batch, not of a device's part of it."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (8, 8, 8, 3), np.uint8), np.arange(8) % 2
    task = Task("noise", (images, labels), (images, labels))
    stream = Stream("noise", [task], scale=1 / 255)
    config = with_method(tiny, "naive")
    config = dataclasses.replace(config, model=Part("given", Convolutions))
    stats = []
    for layout in (Layout(), Layout({"data": 2, "model": 2})):
        engine = Engine(config, stream, layout=layout)
        state, _ = engine.train(engine.init((1,)), (1,), 0, range(1))
        stats.append(jax.device_get(state.stats))
    assert len(jax.tree.leaves(stats[0])) == 2
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), *stats)


def test_seeds_side_by_side_on_a_mesh(tiny, engines, tiny_stream):
    one = engines(tiny.changed({"steps_per_call": 2}), 2)
    losses, accuracies, _ = learn(one, seeds=(1, 2))
    layout = Layout({"data": 2, "model": 2}, "data")
    mesh = Engine(one.config, tiny_stream, 2, layout)
    found, found_accuracies, state = learn(mesh, seeds=(1, 2))
    np.testing.assert_allclose(found, losses, rtol=2e-5)
    np.testing.assert_array_equal(found_accuracies, accuracies)
    bank = optax.tree.get(state.opt_state, "bank")["nu"]["hidden"]["dense1"]["kernel"]
    assert bank.shape == (2, 4, 16, 8)  # Two seeds; three tasks over two devices need four rows.
    assert bank.addressable_shards[0].data.shape == (2, 2, 8, 8)


def test_each_device_holds_its_share_from_the_start(tiny):
    """64 tasks on 8 devices: an eighth of the bank on each, and no more in the step that runs."""
    many = make_stream(num_tasks=64, train=8, test=1)
    config = tiny.changed(dict(batch_size=8, hidden=(64,), steps_per_call=2))
    engine = Engine(config, many, layout=Layout({"data": 8}, "data"))
    state = engine.init((1,))
    bank = optax.tree.get(state.opt_state, "bank")
    banks = [bank["nu"], bank["direction"]]  # The lengths, a number a task, are on every device.
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
        lowered = engine._train.lower(state, batch, *map(np.int32, (0, 0, 1)))
        memory = lowered.compile().memory_analysis()
    everything_else = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) - total
    assert memory.argument_size_in_bytes < total // 8 + everything_else + 10_000
    assert memory.temp_size_in_bytes < 8 * row < total // 8 + everything_else


def finish(engine, path, stop_after=None):
    keeping = Keeping(checkpoint_every=3, stop_after=stop_after)
    directory = RunDirectory(path / "seed-1", engine.config, 1, engine.stream)
    with contextlib.closing(directory):
        runs = [SeedRun(engine, directory, keeping)]
        shown = RunProgress(lambda line: None, "run", engine.steps())
        assert Run(engine, runs, keeping, shown).finish() == {}
    return read_measured(path / "seed-1")


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
    tiny, engines, tiny_stream, tmp_path, before, after
):
    one = engines(tiny.changed({"steps_per_call": 2}))

    def engine_on(layout):
        if layout is None:
            return one
        return Engine(one.config, tiny_stream, layout=Layout(*layout))

    expected = finish(one, tmp_path / "one")
    finish(engine_on(before), tmp_path / "moved", stop_after=2)
    found = finish(engine_on(after), tmp_path / "moved")
    np.testing.assert_array_equal(found.accuracy, expected.accuracy)
    np.testing.assert_allclose(found.alpha, expected.alpha, rtol=1e-3)
    records = [
        (tmp_path / name / "seed-1/metrics.jsonl").read_text().count("\n")
        for name in ("one", "moved")
    ]
    assert records[0] == records[1]


def test_axes_are_checked_before_any_work():
    def refusal(**asked):
        with pytest.raises(UserError) as error:
            choose_axes(Devices(**asked), 10, available=8)
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
    assert choose_axes(Devices(mesh="auto"), 10, available=8) == {"data": 5}
    assert choose_axes(Devices(), 10, available=8) is None


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "tag-self"])
def test_a_bank_axis_without_a_bank(tiny, tiny_stream, optimizer):
    layout = Layout({"data": 2}, "data")
    with pytest.raises(UserError, match=f"with {optimizer} it would change nothing"):
        Engine(with_method(tiny, "naive", optimizer), tiny_stream, layout=layout)


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
        Hosts(**asked)


def test_each_part_of_a_batch_is_read_once(tiny_stream):
    """However many devices share it; where the axis does not divide the batch, it is whole."""
    layout = Layout({"data": 4, "model": 2})
    for size, slices in ((8, [(0, 2), (2, 4), (4, 6), (6, 8)]), (6, [(0, 6)])):
        read = []

        def make(part, size=size, read=read):
            read.append((part.start, part.stop))
            return batches.block(tiny_stream.tasks[0].train, 0, 0, size, part)

        found = layout.batch(make, size, axis=0)
        assert sorted(read) == slices
        whole = batches.block(tiny_stream.tasks[0].train, 0, 0, size)
        jax.tree.map(np.testing.assert_array_equal, found, whole)


def test_parameters_are_split_along_their_longest_fitting_axis():
    layout = Layout({"data": 2, "model": 4})
    shapes = dict(kernel=(3, 3, 20, 40), odd=(3, 5), square=(8, 8), bias=(40,), tall=(16, 10))
    found = layout.params({k: jax.ShapeDtypeStruct(v, np.float32) for k, v in shapes.items()})
    assert {name: list(sharding.spec) for name, sharding in found.items()} == {
        "kernel": [None, None, None, "model"],
        "odd": [None, None],
        "square": [None, "model"],
        "bias": [None],
        "tall": ["model", None],
    }


def test_processes_for_seeds_and_a_mesh_exclude_each_other(tiny, tiny_stream):
    config = dataclasses.replace(tiny, stream=Part("noise", tiny_stream))
    jobs = [Job(name="", config=config, seed=n, tasks=3, directory=None) for n in (1, 2)]
    with pytest.raises(UserError, match="drop --mesh"):
        run_seeds(jobs, Streams(Places()), Progress(), "processes", devices=Devices(mesh="data=2"))


def test_a_mesh_leaves_no_process_without_work(tiny, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match="leaves some of the 8 devices of 2 processes without work"):
        choose_layout(Devices(mesh="data=2"), tiny)
