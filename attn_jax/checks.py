"""One wording for the caller's mistakes, and what is known while JAX traces.

Every error reads: the argument, the rule, what came. Checks that look at values run only where a
value is concrete: under `jax.jit` a traced array passes and the mathematics decides.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def require(condition: bool | np.bool_, argument: str, rule: str, got: Any) -> None:
    """Raise `ValueError("<argument> must <rule>. Got <got>.")` unless the condition holds.

    >>> require(False, "rate", "be at least 0 and below 1", 1.5)
    Traceback (most recent call last):
    ...
    ValueError: rate must be at least 0 and below 1. Got 1.5.
    """
    if not condition:
        raise ValueError(
            f"{argument} must {rule}. Got {got if isinstance(got, str) else show(got)}."
        )


def show(value: Any) -> str:
    """Describe what came: small concrete numbers by value, arrays by dtype and shape.

    >>> show(np.zeros((2, 3))), show(0.5), show(None)
    ('float64[2, 3]', '0.5', 'None')
    """
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return repr(value)
    if value.shape == () and (number := concrete(value)) is not None:
        return str(number)
    return f"{value.dtype}{list(value.shape)}"


def concrete(value: Any) -> np.ndarray | None:
    """The value as a NumPy array, or None where it is not known (traced) or not a number."""
    if isinstance(value, jax.core.Tracer) or value is None:
        return None
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return None  # a PRNG key has no value that could be shown
    return np.asarray(value)


def as_array(value: Any, argument: str) -> jax.Array:
    """The value as a JAX array: whatever NumPy reads as numbers, a list or a data frame too.

    An integer that JAX does not hold (beyond int32, without float64 and int64) is rounded to a
    float instead of wrapping round.

    >>> as_array(np.array([1.0, 2.0], ">f8"), "query").tolist()
    [1.0, 2.0]
    """
    array = read_array(value, argument)
    number = jnp.issubdtype(array.dtype, np.number) or array.dtype == bool
    require(number or isinstance(array, jax.Array), argument, "hold real numbers", array)
    if isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.size:
        held = jnp.iinfo(jax.dtypes.canonicalize_dtype(array.dtype))
        if not held.min <= array.min() <= array.max() <= held.max:
            array = array.astype(np.float64)
    return jnp.asarray(array)


def read_array(value: Any, argument: str) -> jax.Array | np.ndarray:
    """The value as it is where it is JAX's, else as a NumPy array in this machine's byte order."""
    listed = isinstance(value, (list, tuple))
    if listed and any(isinstance(each, jax.Array) for each in jax.tree.leaves(value)):
        return jnp.asarray(value)
    if isinstance(value, jax.Array) or hasattr(value, "__jax_array__"):
        return jnp.asarray(value)
    try:
        array = np.asarray(value)
        if array.dtype == object:
            array = np.asarray(array.tolist())
    except (TypeError, ValueError) as error:
        require(False, argument, "be an array of numbers", f"{type(value).__name__}: {error}")
    if array.dtype == np.longdouble:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def all_hold(value: Any, rule) -> bool:
    """True where the rule holds for every entry, or where the value is not known yet."""
    known = concrete(value)
    return known is None or bool(np.all(rule(known)))


def at_least(size: Any, least: int) -> bool:
    """Whether a size is known and ≥ least: False for a symbolic dimension of `jax.export`.

    >>> import jax.export
    >>> at_least(3, 3), at_least(jax.export.symbolic_shape("b")[0], 3)
    (True, False)
    """
    return isinstance(size, int | np.integer) and bool(size >= least)


def require_function(value: Any, argument: str, form: str) -> None:
    """Refuse what cannot be called, and a slot's class where an instance was meant.

    `form` says what is wanted: "a function (scores) -> weights".
    """
    name = getattr(value, "__name__", "")
    got = f"the class {name}; did you mean {name}()?" if isinstance(value, type) else value
    require(callable(value) and not isinstance(value, type), argument, f"be {form}", got)


def require_scalar(value: Any, argument: str) -> None:
    """Refuse anything but one real number (an array of shape [] included)."""
    real = not isinstance(value, str) and np.shape(value) == () and _is_real(value)
    require(real, argument, "be one real number", value)


def require_integer(value: Any, argument: str) -> None:
    """Refuse anything but one integer: a bool is none, an array of shape [] is one."""
    typed = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.integer)
    whole = type(value) is int or (typed and np.shape(value) == ())
    require(whole, argument, "be one integer", value)


def require_count(value: Any, argument: str) -> None:
    """Refuse anything but one integer that is, wherever it is concrete, not negative."""
    require_integer(value, argument)
    require(all_hold(value, lambda v: v >= 0), argument, "not be negative", value)


def require_positive(value: Any, argument: str) -> None:
    """Refuse zero, negative and non-finite numbers wherever the value is concrete."""
    require(
        all_hold(value, lambda v: np.isfinite(v) & (v > 0)),
        argument,
        "be positive and finite",
        _first_bad(value, lambda v: np.isfinite(v) & (v > 0)),
    )


def _is_real(value: Any) -> bool:
    dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    return jax.dtypes.issubdtype(dtype, np.number) and not jax.dtypes.issubdtype(
        dtype, np.complexfloating
    )


def _first_bad(value: Any, rule) -> Any:
    known = concrete(value)
    if known is None or known.ndim == 0:
        return value
    bad = known[~rule(known)]
    return f"{bad[0]} in {show(value)}" if bad.size else value
