"""Inputs and targets as JAX arrays, measured from the middle of the data where JAX would round.

A fit depends on differences of inputs alone, and moves with its targets. What JAX would round
before it subtracts (float64 and int64 of NumPy where JAX has 32 bits, dates) is centred first, in
its own dtype, and integers that JAX traces are subtracted as integers. Other arguments of `jax.jit`
were rounded before they come here.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Num

from attn_jax.checks import as_array, at_least, concrete, read_array, require, show
from attn_jax.precision import accumulate, difference

NOT_A_TIME = np.iinfo(np.int64).min  # of NumPy's dates
NEAR = 16  # bandwidths: pairs whose distance counts
WRONG = 2**-8  # bandwidths, or ranges of the targets, that rounding may change
FLOAT64 = "(float64 is switched on by jax.config.update('jax_enable_x64', True))"


def centred_inputs(score: Any, **inputs: Any) -> tuple[Num[Array, "..."], ...]:
    """The inputs [rows, features], all measured from one place.

    Dates (`datetime64`, `timedelta64`) count in seconds, and so does their bandwidth.

    Raises:
      ValueError: float32 would not tell the rows apart by the score's bandwidth.
    """
    read = {name: read_array(each, name) for name, each in inputs.items()}
    came = ", ".join(map(show, read.values()))
    rounded = any(map(_is_rounded, read.values()))
    read, seconds = _ticks(read)
    same = len({np.shape(each)[1:] for each in read.values()}) == 1
    proper = same and all(np.ndim(each) == 2 for each in read.values())
    if not proper or not rounded:  # what is refused by its shape is refused elsewhere
        return tuple(as_array(each, name) for name, each in read.items())
    host = {name: each for name, each in read.items() if isinstance(each, np.ndarray)}
    every = np.concatenate(list(host.values()))
    origin = _middle(every, coarse=len(host) < len(read))
    moved = {}
    for name, each in host.items():
        absent = each == NOT_A_TIME if seconds is not None else False
        present = np.where(absent, origin, each.astype(every.dtype))
        moved[name] = _apart(present, origin)
        if seconds is not None:
            moved[name] = np.where(absent, np.nan, moved[name] * seconds)
    names = " and ".join(inputs)
    _require_told_apart(names, list(moved.values()), getattr(score, "bandwidth", None), came)
    return tuple(
        as_array(_within_range(moved[name]), name) if name in moved else _from(origin, each)
        for name, each in read.items()
    )


def centred_targets(
    value: Num[ArrayLike, "n e"], *, shift: bool
) -> tuple[Num[Array, "n e"], Float[Array, "1 e"] | None]:
    """The targets less a centre, and the centre; None where JAX holds the targets as they are.

    `shift` says whether predictions move with the targets, which is so where the weights of each
    query sum to one. Where they need not, the targets stay where they are.

    Raises:
      ValueError: they have to stay, and rounding would change their differences.
    """
    host = _exact(value)
    if host is None or host.ndim != 2:
        array = as_array(value, "value")
        if shift and array.ndim == 2 and _is_finer(array.dtype) and at_least(array.shape[0], 1):
            middle = array[array.shape[0] // 2][None]  # of traced integers any row is a centre
            return difference(array, middle), middle.astype(jnp.result_type(float))
        return array, None
    if not shift:
        rule = "vary by more than float32 rounds where a query's weights may not sum to 1 "
        require(not _is_lost(host, host), "value", rule + FLOAT64, host)
        return as_array(value, "value"), None
    centre = _middle(host)
    with np.errstate(over="ignore"):
        moved, centre = (x.astype(jnp.result_type(float)) for x in (_apart(host, centre), centre))
    return jnp.asarray(moved), jnp.asarray(centre)[None, :]


def uncentred(
    predicted: Float[Array, "q e"], centre: Float[Array, "1 e"] | None
) -> Float[Array, "q e"]:
    """Predictions of `centred_targets` where the targets were."""
    return predicted if centre is None else predicted + centre


def require_variation(predicted: Num[ArrayLike, "n e"], value: Num[ArrayLike, "n e"]) -> None:
    """Refuse predictions that JAX rounded to where the variation of finer targets is lost."""
    fine, known = _exact(value), concrete(predicted)
    if fine is not None and isinstance(predicted, jax.Array) and known is not None:
        rule = "vary by more than float32 rounds: centre the targets before they are predicted "
        require(not _is_lost(known, fine), "predicted", rule + FLOAT64, predicted)


def _exact(value: Any) -> np.ndarray | None:
    """The numbers where they have more digits than JAX's floats and are known."""
    read = read_array(value, "value")
    kind = read.dtype.kind
    known = concrete(read) if kind in "iu" or isinstance(read, np.ndarray) else None
    return known if known is not None and kind in "iuf" and _is_finer(read.dtype) else None


def _is_finer(dtype: Any) -> bool:
    """Whether numbers of this type have more digits than JAX's floats."""
    if not np.issubdtype(dtype, np.number):
        return False
    integers = np.issubdtype(dtype, np.integer)
    digits = jnp.iinfo(dtype).bits if integers else jnp.finfo(dtype).nmant
    return digits > jnp.finfo(jnp.result_type(float)).nmant


def _is_lost(rounded: np.ndarray, fine: np.ndarray) -> bool:
    """Whether JAX's rounding of some numbers is large beside the range of others in a column."""
    eps = float(jnp.finfo(jnp.result_type(float)).eps)
    for column, other in zip(rounded.T.astype(np.float64), fine.T, strict=True):
        size = np.abs(column[np.isfinite(column)]).max(initial=0)
        apart = _apart(other, _middle(other[:, None])).astype(np.float64)
        apart = apart[np.isfinite(apart)]
        with np.errstate(over="ignore"):
            spread = np.ptp(apart) if len(apart) else 0.0
        if spread > 0 and eps * size / 2 > WRONG * spread:
            return True
    return False


def _is_rounded(array: Any) -> bool:
    """Whether JAX would not take all that the array holds."""
    if isinstance(array, jax.Array):
        return False
    dtype, stored = array.dtype, jax.dtypes.canonicalize_dtype
    return dtype.kind in "mM" or (dtype.kind in "iuf" and stored(dtype) != dtype)


def _ticks(read: dict[str, Any]) -> tuple[dict[str, Any], float | None]:
    """Dates as whole numbers of one unit, and how many seconds that is; None for numbers."""
    kinds = {name: each.dtype.kind for name, each in read.items()}
    if not set(kinds.values()) & {"m", "M"}:
        return read, None
    first = next(iter(read))
    for name, kind in kinds.items():
        rule = f"be dates where {first} is: {show(read[first])}"
        require(kind == kinds[first], name, rule, read[name])
    try:
        unit = np.result_type(f"{kinds[first]}8[s]", *(each.dtype for each in read.values()))
    except TypeError as error:  # months have no length
        require(False, first, "have a unit of so many seconds", str(error))
    length = np.timedelta64(1, np.datetime_data(unit)[0]) * np.datetime_data(unit)[1]
    whole = {name: each.astype(unit).view(np.int64) for name, each in read.items()}
    return whole, float(length / np.timedelta64(1, "s"))


def _middle(every: np.ndarray, *, coarse: bool = False) -> np.ndarray:
    """The middle one of the rows, for each feature; as float32 holds it, if `coarse`."""
    # a row that a mask deletes may hold anything
    finite = [column[np.isfinite(column)] for column in every.T]
    middle = [
        np.partition(each, len(each) // 2)[len(each) // 2] if len(each) else 0 for each in finite
    ]
    origin = np.array(middle, every.dtype)
    if coarse:
        with np.errstate(over="ignore"):
            single = origin.astype(np.float32)
        origin = np.where(np.isfinite(single), single, 0).astype(every.dtype)
    return origin


def _apart(array: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """array - origin: exact for integers, as far as 64 bits hold it."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            apart = array - origin
        largest = np.finfo(apart.dtype).max  # that of finite numbers is finite
        return np.where(np.isfinite(array), np.clip(apart, -largest, largest), apart)
    far = array.astype(np.float64) - origin.astype(np.float64)
    if far.size and np.abs(far).max() >= 2**62:
        return far
    return (array.astype(np.uint64) - origin.astype(np.uint64)).view(np.int64)


def _within_range(apart: np.ndarray) -> np.ndarray:
    """Differences that JAX's floats hold: finite ones beyond them are the largest."""
    if apart.dtype.kind != "f":
        return apart
    largest = float(jnp.finfo(jnp.result_type(float)).max)
    return np.where(np.isfinite(apart), np.clip(apart, -largest, largest), apart)


def _from(origin: np.ndarray, array: Num[Array, "n d"]) -> Num[Array, "n d"]:
    """array - origin of a JAX array, which was rounded before."""
    if jnp.issubdtype(array.dtype, jnp.integer) and origin.dtype.kind in "iu":
        limits = jnp.iinfo(array.dtype)
        if np.all((limits.min <= origin) & (origin <= limits.max)):
            return difference(array, jnp.asarray(origin, array.dtype)[None, :])
    (array,) = accumulate(array)
    return array - jnp.asarray(origin.astype(np.float64), array.dtype)[None, :]


def _require_told_apart(names: str, moved: list[np.ndarray], bandwidth: Any, came: str) -> None:
    """Refuse rows nearer than some bandwidths whose distance float32 does not know.

    Without a bandwidth, to be found or traced: a column most of whose numbers would become equal.
    """
    if jnp.result_type(float) != np.float32:
        return
    every, known = np.concatenate(moved), concrete(bandwidth)
    if every.dtype.kind == "i" and np.abs(every).max(initial=0) <= jnp.iinfo(jnp.int32).max:
        return  # integers they stay
    if np.shape(known) not in ((), every.shape[1:]):
        return  # which is answered elsewhere
    widths = np.broadcast_to(0.0 if known is None else known, every.shape[1:])
    for column, width in zip(every.T.astype(np.float64), widths, strict=True):
        column = column[np.isfinite(column)]
        if np.abs(column).max(initial=0) * 2**-24 < WRONG * width / 2:
            continue
        column = np.unique(column)
        single = _within_range(column).astype(np.float32).astype(np.float64)
        with np.errstate(over="ignore"):
            gap, shown = np.diff(column), np.diff(single)
        if known is None:
            told = 2 * np.count_nonzero(shown) >= len(gap)
        else:
            near = np.minimum(gap, shown) < NEAR * width
            told = not np.any(near & (np.abs(shown - gap) > WRONG * width))
        rule = "lie further apart than float32 rounds " + FLOAT64
        require(told, names, rule, came if known is None else f"{came}, bandwidth {width:.6g}")
