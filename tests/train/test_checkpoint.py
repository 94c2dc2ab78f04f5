"""Checkpoints against damage: restored is what was saved, or an older one, and that is said."""

import gc
import json
import logging
import os
import random
import shutil
import sys
import types
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.errors import UserError
from train.run import checkpoint
from train.run.checkpoint import Checkpoints, fingerprint, fingerprints
from train.run.engine import Engine

from .conftest import make_stream, with_parts


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """As on the command line: what orbax leaves behind where a file cannot be read is no error."""
    log = logging.getLogger("absl")
    before = sys.unraisablehook, log.level
    checkpoint.quiet()
    yield
    gc.collect()
    sys.unraisablehook = before[0]
    log.setLevel(before[1])


@pytest.fixture(scope="module")
def engine(tiny):
    """Of one layer: few arrays, and so few files."""
    config = with_parts(tiny, optimizer="sgd", momentum=0.9, steps_per_call=1, hidden=())
    return Engine(config, make_stream())


def opened(path, engine):
    return Checkpoints(path, keep=2, fingerprint=engine.fingerprint)


@pytest.fixture(scope="module")
def states(engine):
    """Two states of a run, as the host sees them."""
    state = engine.init((1,))
    kept = [jax.device_get(state)]
    for step in range(5):
        state, _ = engine.train(state, (1,), 0, range(step, step + 1))
    return [*kept, jax.device_get(state)]


def notes_of(step):
    return {"step": step, "losses": [0.25] * step}


@pytest.fixture(scope="module")
def saved(engine, states, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = opened(path, engine)
    for step, state in zip((0, 5), states, strict=True):
        checkpoints.save(step, jax.device_put(state), notes_of(step))
    checkpoints.close()
    return path


def restored(path, engine):
    checkpoints = opened(path, engine)
    try:
        state, notes, damaged = checkpoints.restore(engine.shapes())
    finally:
        checkpoints.close()
    return jax.device_get(state), notes, damaged


def assert_one_of(state, notes, states):
    expected = states[{0: 0, 5: 1}[notes["step"]]]
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    assert notes == notes_of(notes["step"])


def files(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def damage(path, kind, dice):
    """Spoils a file; False where it has nothing to spoil."""
    size = path.stat().st_size
    if kind == "deleted":
        path.unlink()
    elif not size:
        return False
    elif kind == "truncated":
        os.truncate(path, dice.randrange(size))
    elif kind == "zeros":  # As a file system may leave it after a power cut.
        path.write_bytes(bytes(size))
    else:
        content = bytearray(path.read_bytes())
        content[dice.randrange(size)] ^= 1 << dice.randrange(8)
        path.write_bytes(content)
    return True


@pytest.mark.parametrize("kind", ["deleted", "truncated", "zeros", "flipped", "flipped again"])
def test_no_damage_is_taken_for_a_state(saved, engine, states, tmp_path, kind):
    """Every file of the newest checkpoint, one at a time."""
    dice = random.Random(kind)
    noticed = []
    for position, name in enumerate(path.relative_to(saved) for path in files(saved / "5")):
        copy = tmp_path / str(position) / "checkpoints"
        shutil.copytree(saved, copy)
        if not damage(copy / name, kind, dice):
            continue
        state, notes, damaged = restored(copy, engine)
        assert_one_of(state, notes, states)
        if notes["step"] == 0 and (copy.parent / "checkpoints-damaged").exists():
            (line,) = damaged
            assert "checkpoint at step 5 is damaged" in line
            assert not (copy / "5").exists()
            assert (copy.parent / "checkpoints-damaged" / "5").is_dir()
            noticed.append(name.parts[-2:])
        elif notes["step"] == 5:
            assert damaged == []
    assert ("record", "metadata") in noticed
    assert any("d" in parts for parts in noticed), "no file of arrays was noticed"


def test_every_array_is_watched(saved, engine, tmp_path):
    """Arrays as a whole: one that comes back otherwise is named."""
    checkpoints = Checkpoints(
        saved,
        keep=2,
        fingerprint=lambda state: engine.fingerprint(state) | {".params['output']['bias']": 7},
    )
    with pytest.raises(UserError, match=r"\.params\['output'\]\['bias'\] has changed"):
        checkpoints.restore(engine.shapes())
    checkpoints.close()
    assert {path.name for path in saved.iterdir()} == {"0", "5"}  # Left as they are.


def test_a_record_that_was_edited_is_not_believed(saved, engine, states, tmp_path):
    copy = tmp_path / "checkpoints"
    shutil.copytree(saved, copy)
    path = copy / "5" / "record" / "metadata"
    record = json.loads(path.read_text())
    record["notes"]["losses"] = [0.125] * 5
    path.write_text(json.dumps(record))
    state, notes, (line,) = restored(copy, engine)
    assert_one_of(state, notes, states)
    assert "its record has changed" in line


def test_damage_at_the_same_step_again(saved, engine, states, tmp_path):
    copy = tmp_path / "checkpoints"
    for _ in range(3):
        shutil.copytree(saved / "5", copy / "5")
        shutil.copytree(saved / "0", copy / "0", dirs_exist_ok=True)
        (copy / "5" / "record" / "metadata").write_text("{}")
        restored(copy, engine)
    kept = sorted(path.name for path in (tmp_path / "checkpoints-damaged").iterdir())
    assert kept == ["5", "5.1", "5.2"]


DTYPES = ["float32", "bfloat16", "float16", "int32", "uint32", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bit_of_any_array_shows(dtype):
    rng = np.random.default_rng(0)
    array = jnp.asarray(rng.integers(0, 2, (3, 4, 5)) * 3, dtype)
    before = fingerprint(array)
    flat = np.asarray(array).view(np.uint8).copy()
    for at in rng.choice(flat.size, 20, replace=False):
        bits = [0] if dtype == "bool" else range(8)
        for bit in bits:
            flat.reshape(-1)[at] ^= 1 << bit
            changed = flat.view(np.asarray(array).dtype).reshape(array.shape)
            assert fingerprint(jnp.asarray(changed)) != before
            flat.reshape(-1)[at] ^= 1 << bit


@pytest.mark.parametrize("size", [2, 7, 64])
@pytest.mark.parametrize("bit", [0, 15, 30, 31])
def test_the_same_bit_of_all_numbers_shows(size, bit):
    """As where every sign turns: sums of the highest bits must not cancel."""
    words = np.random.default_rng(0).integers(0, 2**32, (size, 3), np.uint32)
    changed = words ^ np.uint32(1 << bit)
    assert fingerprint(jnp.asarray(words)) != fingerprint(jnp.asarray(changed))


def test_places_matter_and_zeros_behind_do_not():
    x = jnp.arange(24, dtype=jnp.float32).reshape(2, 3, 4)
    assert fingerprint(x) != fingerprint(x[::-1])
    assert fingerprint(x) != fingerprint(x[:, :, ::-1])
    assert fingerprint(x) == fingerprint(jnp.pad(x, ((0, 0), (0, 5), (0, 0))))
    with jax.enable_x64(True):
        wide = jnp.arange(3, dtype=jnp.float64)
        assert fingerprint(wide) != fingerprint(wide.at[1].add(1e-15))


def test_a_fingerprint_is_the_same_on_every_mesh():
    x = jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
    mesh = jax.make_mesh((8,), ("d",), (jax.sharding.AxisType.Auto,))
    split = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")))
    assert jax.jit(fingerprints)({"x": split}) == jax.jit(fingerprints)({"x": x})


# What is printed.


def test_only_stragglers_of_a_failed_write_are_silent():
    """Those that tensorstore leaves behind; every other error that Python can only print is."""
    told: list[BaseException] = []
    report = checkpoint._without_stragglers(lambda found: told.append(found.exc_value))
    others = [RuntimeError("Event loop stopped before Future completed."), ValueError("closed")]
    for error in (RuntimeError("Event loop is closed"), *others):
        report(types.SimpleNamespace(exc_value=error, object=None))
    assert told == others
