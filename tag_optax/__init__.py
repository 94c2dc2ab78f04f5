"""TAG (Task-based Accumulated Gradients) for optax: optimizers that remember their tasks."""

from tag_optax._alias import tag_adagrad, tag_adam, tag_rmsprop
from tag_optax._companions import (
    AddEwcPenaltyState,
    ProjectOrthogonalState,
    add_ewc_penalty,
    consolidate_ewc,
    project_agem,
    project_orthogonal,
    store_direction,
)
from tag_optax._inspect import grow, state_bytes, task_weights, vmap_axes
from tag_optax._sharding import state_sharding
from tag_optax._state import ScaleByTagState
from tag_optax._tag import (
    scale_by_tag_adagrad,
    scale_by_tag_adam,
    scale_by_tag_rms,
)
from tag_optax._wrappers import StatefulTaskIdState, stateful_task_id

__version__ = "0.1.0"

__all__ = [
    "AddEwcPenaltyState",
    "ProjectOrthogonalState",
    "ScaleByTagState",
    "StatefulTaskIdState",
    "add_ewc_penalty",
    "consolidate_ewc",
    "grow",
    "project_agem",
    "project_orthogonal",
    "scale_by_tag_adagrad",
    "scale_by_tag_adam",
    "scale_by_tag_rms",
    "state_bytes",
    "state_sharding",
    "stateful_task_id",
    "store_direction",
    "tag_adagrad",
    "tag_adam",
    "tag_rmsprop",
    "task_weights",
    "vmap_axes",
]
