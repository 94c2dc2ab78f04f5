"""What a TAG step costs on a mesh, on paper: the formulas that ``benchmarks.scaling`` checks.

For TAG-RMSProp with the cosine, whose state holds a live row and a bank of K rows of first and of
second moments. A row is as long as the parameters; a device holds K / Dt rows (``bank_rows``) of
P / Dm numbers (``row``), where Dt devices share the tasks and Dm the parameters.
"""

from typing import NamedTuple

FLOAT32 = 4  # Gradients, updates and sums travel and are computed in float32.


class Layout(NamedTuple):
    """A state on a mesh of ``task_devices`` x ``model_devices``."""

    capacity: int  # K
    parameters: int  # P
    task_devices: int = 1  # Dt
    model_devices: int = 1  # Dm
    leaves: int = 1  # Arrays that the parameters come in.
    moment_bytes: int = FLOAT32  # A number of the state.
    # Parameters, gradients and updates are whole on every device, only the state is split.
    whole_parameters: bool = False

    @property
    def bank_rows(self) -> float:
        return self.capacity / self.task_devices

    @property
    def row(self) -> float:
        return self.parameters / self.model_devices


def all_reduce(size: float, devices: int) -> float:
    """Bytes that each device of a ring sends to sum arrays of ``size`` bytes.

    >>> all_reduce(100, devices=4), all_reduce(100, devices=1)
    (150.0, 0.0)
    """
    return 2 * (devices - 1) / devices * size


def all_gather(size: float, devices: int) -> float:
    """Bytes that each device of a ring sends so that all have the ``size`` bytes of the whole.

    >>> all_gather(100, devices=4), all_gather(100, devices=1)
    (75.0, 0.0)
    """
    return (devices - 1) / devices * size


SENT = {"all-reduce": all_reduce, "all-gather": all_gather}


def state_bytes(layout: Layout) -> float:
    """Bytes of the state on one device: ``2 (K / Dt + 1) (P / Dm)`` moments.

    And the past's part of W in float32, and, whole on every device, whether tasks were visited,
    their steps, weights and lengths, the live task's id and length.

    >>> state_bytes(Layout(1000, 10**9, task_devices=32, model_devices=8)) / 1e9
    32.750013008
    """
    per_task = 1 + 3 * 4
    moments = 2 * (layout.bank_rows + 1) * layout.row
    return moments * layout.moment_bytes + 4 * layout.row + per_task * layout.capacity + 8


def step_touched(layout: Layout) -> float:
    """Bytes that a device reads and writes in every step, were nothing copied.

    The bank once, M for the inner products and V for W; the live rows M and V read and written; and
    in float32: the gradient for its length, for M and for V, M for the products and for its norm,
    the bank's part of W written, and gradient, V and W read to write the update. A W that is a sum
    over devices is read and written once more, and so is an update that must be gathered.
    """
    bank = 2 * layout.bank_rows * layout.row * layout.moment_bytes
    live = 4 * layout.row * layout.moment_bytes
    passes = (10 + 2 * (layout.task_devices > 1)) * layout.row
    if layout.whole_parameters:
        passes += layout.row + layout.parameters
    return bank + live + passes * FLOAT32


def change_touched(layout: Layout) -> float:
    """Bytes that a device reads and writes besides, in the step in which the task changes.

    Rows are put away by a selection over the whole bank (read and written, and the rows read) and
    taken up by a weighted sum over it (read, and the rows written), because that is what devices
    can do without meeting. Two rows that are a sum over devices are read and written once more.
    """
    put_away = 2 * (2 * layout.bank_rows + 1) * layout.row
    taken_up = 2 * (layout.bank_rows + 1 + 2 * (layout.task_devices > 1)) * layout.row
    return (put_away + taken_up) * layout.moment_bytes


def step_sent(layout: Layout) -> float:
    """Bytes that a device sends in every step.

    Split parameters: the gradient's length, a device's inner products and its norm, in all
    ``K / Dt + 2`` numbers for each leaf, are summed over Dm. Spread tasks: K inner products are
    gathered, and W summed, over Dt. Whole parameters of a split state: the update is gathered over
    Dm.

    >>> split = Layout(1000, 10**9, model_devices=256, leaves=300)
    >>> spread = Layout(1000, 10**9, task_devices=256)
    >>> round(step_sent(split) / 1e6, 1), round(step_sent(spread) / 1e6, 1)
    (2.4, 7968.8)
    """
    products = layout.leaves * (layout.bank_rows + 2) * FLOAT32
    update = layout.parameters * FLOAT32 * layout.whole_parameters
    return (
        all_reduce(products, layout.model_devices)
        + all_gather(layout.capacity * FLOAT32, layout.task_devices)
        + all_reduce(layout.row * FLOAT32, layout.task_devices)
        + all_gather(update, layout.model_devices)
    )


def change_sent(layout: Layout) -> float:
    """Bytes that a device sends besides when the task changes: two rows, if tasks are spread."""
    return all_reduce(2 * layout.row * layout.moment_bytes, layout.task_devices)
