"""Where to predict and where the data lie, as JAX arrays whose differences are right.

A fit depends on differences of inputs alone. What JAX would round before it subtracts (float64 and
int64 of NumPy where JAX has 32 bits, dates) is measured from the middle of the data first, in its
own dtype.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from attn_jax.checks import as_array, concrete, read_array, require, show
from attn_jax.precision import accumulate, difference

NOT_A_TIME = np.iinfo(np.int64).min  # of NumPy's dates
NEAR = 16  # bandwidths: pairs whose distance counts
WRONG = 2**-8  # bandwidths that it may be wrong by


def places(score: Any, **inputs: Any) -> tuple[Num[Array, "..."], ...]:
    """The inputs [rows, features], measured alike from one place.

    Dates (`datetime64`, `timedelta64`) count in seconds, and so does their bandwidth. Under
    `jax.jit` an argument was rounded before it comes here.

    Raises:
      ValueError: float32 would not tell the rows apart by the score's bandwidth.
    """
    read = {name: read_array(each, name) for name, each in inputs.items()}
    same = len({np.shape(each)[1:] for each in read.values()}) == 1
    proper = same and all(np.ndim(each) == 2 for each in read.values())
    if not proper or not any(map(_is_rounded, read.values())):
        return tuple(as_array(each, name) for name, each in read.items())
    came = ", ".join(map(show, read.values()))
    read, seconds = _ticks(read)
    host = {name: each for name, each in read.items() if isinstance(each, np.ndarray)}
    every = np.concatenate(list(host.values()))
    origin = _middle(every, coarse=len(host) < len(read))
    moved = {}
    for name, each in host.items():
        absent = each == NOT_A_TIME if seconds is not None else False
        moved[name] = _apart(np.where(absent, origin, each.astype(every.dtype)), origin)
        if seconds is not None:
            moved[name] = np.where(absent, np.nan, moved[name] * seconds)
    names = " and ".join(inputs)
    _require_told_apart(names, list(moved.values()), getattr(score, "bandwidth", None), came)
    return tuple(
        as_array(moved[name], name) if name in moved else _from(origin, each)
        for name, each in read.items()
    )


def _is_rounded(array: Any) -> bool:
    """Whether JAX would not take all that the array holds."""
    if isinstance(array, jax.Array):
        return False
    dtype, held = array.dtype, jax.dtypes.canonicalize_dtype
    return dtype.kind in "mM" or (dtype.kind in "iuf" and held(dtype) != dtype)


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


def _middle(every: np.ndarray, *, coarse: bool) -> np.ndarray:
    """A place in the middle of the rows, for each feature; one that float32 holds, if `coarse`."""
    if not len(every):
        return np.zeros(every.shape[1], every.dtype)
    if every.dtype.kind == "f":  # a row that a mask deletes may hold anything
        finite = [column[np.isfinite(column)] for column in every.T]
        origin = np.array([np.median(each) if len(each) else 0.0 for each in finite], every.dtype)
    else:
        origin = np.partition(every, len(every) // 2, axis=0)[len(every) // 2]
    if coarse:
        with np.errstate(over="ignore"):
            single = origin.astype(np.float32)
        origin = np.where(np.isfinite(single), single, 0).astype(every.dtype)
    return origin


def _apart(array: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """array - origin: exact for integers, as far as 64 bits hold it."""
    if array.dtype.kind == "f":
        return array - origin
    far = array.astype(np.float64) - origin.astype(np.float64)
    if far.size and np.abs(far).max() >= 2**62:
        return far
    return (array.astype(np.uint64) - origin.astype(np.uint64)).view(np.int64)


def _from(origin: np.ndarray, array: Num[Array, "n d"]) -> Num[Array, "n d"]:
    """The same of a JAX array, which was rounded before."""
    if jnp.issubdtype(array.dtype, jnp.integer) and origin.dtype.kind in "iu":
        held = jnp.iinfo(array.dtype)
        if np.all((held.min <= origin) & (origin <= held.max)):
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
        column = column[np.abs(column) < jnp.finfo(np.float32).max]
        if np.abs(column).max(initial=0) * 2**-24 < WRONG * width / 2:
            continue
        column = np.unique(column)
        gap, shown = (np.diff(each.astype(np.float64)) for each in (column, np.float32(column)))
        if known is None:
            told = 2 * np.count_nonzero(shown) >= len(gap)
        else:
            told = not np.any((np.abs(shown - gap) > WRONG * width) & (gap < NEAR * width))
        rule = "lie further apart than float32 rounds (float64 is switched on by "
        rule += "jax.config.update('jax_enable_x64', True))"
        require(told, names, rule, came if known is None else f"{came}, bandwidth {width:.6g}")
