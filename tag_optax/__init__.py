"""TAG (Task-based Accumulated Gradients) for optax: optimizers that remember their tasks."""

from tag_optax._alias import (
    scale_by_tag_adagrad,
    scale_by_tag_adam,
    scale_by_tag_rms,
    tag_adagrad,
    tag_adam,
    tag_rmsprop,
)
from tag_optax._bank import Bank
from tag_optax._banks import full, running_sum
from tag_optax._clustered import clustered
from tag_optax._companions import (
    AddEwcPenaltyState,
    ProjectOrthogonalState,
    add_ewc_penalty,
    consolidate_ewc,
    project_agem,
    project_orthogonal,
    store_direction,
)
from tag_optax._compressed import compressed
from tag_optax._detect import DetectTasksState, detect_tasks
from tag_optax._inspect import grow, rearrange, state_bytes, task_weights, vmap_axes
from tag_optax._protect import ProtectState, protect
from tag_optax._relatedness import Relatedness, age, cosine, first_gradients, own, uniform
from tag_optax._schedules import ScaleByTaskScheduleState, scale_by_task_schedule
from tag_optax._sharding import state_sharding
from tag_optax._tag import ScaleByTagState
from tag_optax._wrappers import StatefulTaskIdState, stateful_task_id

__version__ = "0.2.0"

__all__ = [
    "AddEwcPenaltyState",
    "Bank",
    "DetectTasksState",
    "ProjectOrthogonalState",
    "ProtectState",
    "Relatedness",
    "ScaleByTagState",
    "ScaleByTaskScheduleState",
    "StatefulTaskIdState",
    "add_ewc_penalty",
    "age",
    "clustered",
    "compressed",
    "consolidate_ewc",
    "cosine",
    "detect_tasks",
    "first_gradients",
    "full",
    "grow",
    "own",
    "project_agem",
    "project_orthogonal",
    "protect",
    "rearrange",
    "running_sum",
    "scale_by_tag_adagrad",
    "scale_by_tag_adam",
    "scale_by_tag_rms",
    "scale_by_task_schedule",
    "state_bytes",
    "state_sharding",
    "stateful_task_id",
    "store_direction",
    "tag_adagrad",
    "tag_adam",
    "tag_rmsprop",
    "task_weights",
    "uniform",
    "vmap_axes",
]
