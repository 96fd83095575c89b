"""The training step: a pure function of (state, batch)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from attn_jax.checks import require

FLAGS = "flags of all processes"  # among a step's metrics, where there are several


class NonFiniteLoss(ArithmeticError):  # noqa: N818 (it says what happened, as StopIteration does)
    """The loss, its gradient or the updated parameters became inf or NaN at `step`.

    Attributes:
        step: The step whose update was refused; the parameters are finite before it.
        checkpoint: The last good checkpoint, None where there is none.
    """

    def __init__(self, message: str, step: int, checkpoint: Any):
        super().__init__(message)
        self.step, self.checkpoint = step, checkpoint


class State(NamedTuple):
    """All that one step reads and writes. Modules are kept as pure dicts: cheap to pass to jit."""

    parameters: Any
    others: Any  # the model's other variables: dropout's generators, running averages
    optimizer: Any
    rng: jax.Array
    step: jax.Array
    finite: jax.Array  # False from the first non-finite step on, when nothing else moves any more


def split(model: nnx.Module) -> tuple[Any, Any, Any]:
    """Graph definition, parameters and other variables of a model."""
    graphdef, parameters, others = nnx.split(model, nnx.Param, ...)
    return graphdef, nnx.to_pure_dict(parameters), nnx.to_pure_dict(others)


@jax.jit
def copy(tree: Any) -> Any:
    """New buffers, so that donating the state deletes nothing that someone else holds."""
    return jax.tree.map(jnp.copy, tree)


def initial_state(model: nnx.Module, optimizer: optax.GradientTransformation, seed: int) -> State:
    """The state before the first step; the model keeps its own arrays."""
    _, parameters, others = split(model)
    state = State(
        parameters=parameters,
        others=others,
        optimizer=optimizer.init(parameters),
        rng=jax.random.key(seed),
        step=jnp.zeros((), jnp.int32),
        finite=jnp.array(True),
    )
    return copy(jax.tree.map(_strong, state))


def _strong(leaf: Any) -> jax.Array:
    # A checkpoint cannot remember that a type was weak, and that decides what it promotes to.
    leaf = jnp.asarray(leaf)
    return (
        jax.lax.convert_element_type(leaf, leaf.dtype)
        if getattr(leaf, "weak_type", False)
        else leaf
    )


def make_step(
    graphdef: Any, loss: Callable, optimizer: optax.GradientTransformation, places: State | None
) -> Callable[[State, Any], tuple[State, dict[str, jax.Array]]]:
    """Compile `(state, batch) -> (state, metrics)`; the state is donated, and stays in its places.

    Metrics are the same on all devices.
    """
    # Optimizers that search along a line or watch for plateaus want the value as well.
    optimizer = optax.with_extra_args_support(optimizer)

    def step(state: State, batch: Any, flags: Any = None) -> tuple[State, dict[str, jax.Array]]:
        rng = jax.random.fold_in(state.rng, state.step)

        def objective(parameters):
            model = nnx.merge(graphdef, parameters, state.others)
            value, metrics = _value_and_metrics(loss(model, batch, rng))
            _, _, others = split(model)
            return value, (metrics, others)

        gradient_of = jax.value_and_grad(objective, has_aux=True)
        (value, (metrics, others)), gradient = gradient_of(state.parameters)
        updates, optimizer_state = optimizer.update(
            gradient,
            state.optimizer,
            state.parameters,
            value=value,
            grad=gradient,
            value_fn=lambda parameters: objective(parameters)[0],
        )
        parameters = optax.apply_updates(state.parameters, updates)
        finite = state.finite & jnp.isfinite(value) & _all_finite(gradient)
        finite &= _stays_finite(parameters, state.parameters)
        moved = state._replace(
            parameters=parameters, others=others, optimizer=optimizer_state, step=state.step + 1
        )
        # The host looks at `finite` only now and then: until it does, the good state must wait.
        kept = jax.tree.map(lambda new, old: _where(finite, new, old), moved, state)
        agreed = {} if flags is None else {FLAGS: jnp.max(flags, axis=0)}
        return kept._replace(finite=finite), {"loss": value, **metrics} | agreed

    if places is None:
        return jax.jit(step, donate_argnums=0)
    return jax.jit(step, donate_argnums=0, out_shardings=(places, places.step))


def _value_and_metrics(result: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    value, metrics = result if isinstance(result, tuple) else (result, {})
    value = jnp.asarray(value)
    real = value.shape == () and jnp.issubdtype(value.dtype, jnp.floating)
    require(
        real, "loss", "return one real number, alone or with a dict of them", value.aval.str_short()
    )
    for name, number in metrics.items():
        require(
            jnp.shape(number) == (), "loss", f"return one number as {name!r}", jnp.shape(number)
        )
    taken = {"loss", "step", "seconds", "evaluation"} & metrics.keys()
    require(not taken, "loss", "leave the names of a row's own entries alone", repr(sorted(taken)))
    return value, metrics


def _where(finite: jax.Array, new: Any, old: jax.Array) -> jax.Array:
    # The state keeps its types, so that each step compiles once and a checkpoint always fits.
    new = jnp.asarray(new)
    return jnp.where(finite, new if new.dtype == old.dtype else new.astype(old.dtype), old)


def _all_finite(tree: Any) -> jax.Array:
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.array(leaves, bool))


def _stays_finite(new: Any, old: Any) -> jax.Array:
    # A parameter may be -inf on purpose (a sink that is switched off); becoming so is the failure.
    fine = jax.tree.map(lambda n, o: jnp.all(jnp.isfinite(n) | ~jnp.isfinite(o)), new, old)
    return jnp.all(jnp.array(jax.tree.leaves(fine), bool))


def run_ahead(mesh: Mesh | None) -> int:
    """How many steps the host may hand out before the oldest of them is done.

    Several keep a device busy; without a bound, batches pile up in its memory. XLA's simulated CPU
    devices share one pool of threads and deadlock in collectives of different steps: one at a time.
    """
    simulated = mesh is not None and mesh.devices.flat[0].platform == "cpu"
    return 0 if simulated else 4
