"""One wording for the caller's mistakes, and what is known while JAX traces.

Every error reads: the argument, the rule, what came. Checks that look at values run only where a
value is concrete: under `jax.jit` a traced array passes and the mathematics decides.
"""

from typing import Any

import jax
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
