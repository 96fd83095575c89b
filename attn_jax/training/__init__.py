"""One Optax loop for every model: fit, evaluate, stop early, checkpoint, resume bit-exactly."""

from attn_jax.training.batches import Batches
from attn_jax.training.checkpoints import CheckpointError
from attn_jax.training.fitting import Fit, fit, load, load_average
from attn_jax.training.processes import ProcessesLostError
from attn_jax.training.rows import read as read_history
from attn_jax.training.sharding import fsdp, tensor
from attn_jax.training.step import NonFiniteLoss

__all__ = [
    "Batches",
    "CheckpointError",
    "Fit",
    "NonFiniteLoss",
    "ProcessesLostError",
    "fit",
    "fsdp",
    "load",
    "load_average",
    "read_history",
    "tensor",
]
