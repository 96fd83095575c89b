"""Kernels in log space: log K(u) of the distance u = ‖(query - key) / bandwidth‖.

Every kernel is radial and scaled so that K(0) = 1, log K(0) = 0: a kernel's usual normalizing
constant cancels in the weights K / ΣK. Outside a compact support log K is -inf, which deletes the
key; the boxcar includes u = 1, the other compact kernels vanish there.

| kernel | K(u) | support |
|---|---|---|
| gaussian | exp(-u²/2) | all u |
| logistic | 4 / (eᵘ + 2 + e⁻ᵘ) = sech²(u/2) | all u |
| laplace | exp(-u) | all u |
| boxcar | 1 | u ≤ 1 |
| triangular | 1 - u | u < 1 |
| epanechnikov | 1 - u² | u < 1 |
| biweight | (1 - u²)² | u < 1 |
| triweight | (1 - u²)³ | u < 1 |
| tricube | (1 - u³)³ | u < 1 |
| cosine | cos(πu/2) | u < 1 |

Each is defined by its profile, log K as a function of t = u²: that is how a squared distance
gets finite, right derivatives of any order when a query lies exactly on a key, where u itself has
none. At the kinks of `triangular` and `laplace` the derivative is 0 by convention.

A user's kernel is any function u ↦ log K(u). (Silverman 1986, table 3.1; Fan & Gijbels 1996.)
"""

import functools
import math
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

Profile = Callable[[Float[Array, "..."]], Float[Array, "..."]]


def _radial(profile: Profile) -> Profile:
    """Turn a profile t ↦ log K(√t) into the kernel u ↦ log K(u); the profile stays reachable."""

    @functools.wraps(profile)
    def log_kernel(u):
        return profile(jnp.square(jnp.asarray(u, jnp.result_type(u, jnp.float32))))

    del log_kernel.__wrapped__  # the signature is u's, not t's
    log_kernel.profile = profile  # type: ignore[attr-defined] # a function may have one
    return log_kernel


def of_squared_distance(kernel: Profile, t: Float[Array, "..."]) -> Float[Array, "..."]:
    """log K(√t): by the kernel's profile, or by a user's function of u with a safe root."""
    return kernel.profile(t) if hasattr(kernel, "profile") else kernel(_root(t))


def _root(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """√t whose derivative at 0 is 0 instead of infinite."""
    zero = t == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, t)))


def _inside(t: Float[Array, "..."], log_profile: Profile) -> Float[Array, "..."]:
    """log_profile where t < 1, -inf elsewhere, without touching it there (a NaN stays NaN)."""
    outside = t >= 1
    return jnp.where(outside, -jnp.inf, log_profile(jnp.where(outside, 0.0, t)))


def _series(x: Float[Array, "..."], sign: int) -> Float[Array, "..."]:
    """Σₙ₌₁ (sign·x)ⁿ / (2n)!, that is cosh(√x) - 1 or cos(√x) - 1, to rounding on [0, 1]."""
    terms = 10
    total = jnp.zeros_like(x)
    for n in range(terms, 0, -1):
        total = (sign * x / ((2 * n) * (2 * n - 1))) * (1 + total)
    return total


@_radial
def gaussian(t):
    """exp(-u²/2).

    >>> float(gaussian(2.0))
    -2.0
    """
    return -t / 2


@_radial
def logistic(t):
    """4 / (eᵘ + 2 + e⁻ᵘ), that is sech²(u/2)."""
    # 4 / (e^u + 2 + e^-u) = 2 / (1 + cosh u): a power series in t = u² near 0, where √t has no
    # derivative, and -u + 2 log(2 / (1 + e^-u)) elsewhere, where cosh overflows.
    near = t < 1
    small = jnp.where(near, t, 0.0)
    u = jnp.sqrt(jnp.where(near, 1.0, t))
    far = -u + 2 * (math.log(2) - jnp.log1p(jnp.exp(-u)))
    return jnp.where(near, -jnp.log1p(_series(small, 1) / 2), far)


@_radial
def laplace(t):
    """exp(-u)."""
    return -_root(t)


@_radial
def boxcar(t):
    """1 for u ≤ 1: every key in reach weighs the same."""
    return jnp.where(t > 1, -jnp.inf, 0 * t)


@_radial
def triangular(t):
    """1 - u."""
    return _inside(t, lambda t: jnp.log1p(-_root(t)))


@_radial
def epanechnikov(t):
    """1 - u² (Epanechnikov 1969)."""
    return _inside(t, lambda t: jnp.log1p(-t))


@_radial
def biweight(t):
    """(1 - u²)²."""
    return _inside(t, lambda t: 2 * jnp.log1p(-t))


@_radial
def triweight(t):
    """(1 - u²)³."""
    return _inside(t, lambda t: 3 * jnp.log1p(-t))


@_radial
def tricube(t):
    """(1 - u³)³ (Cleveland 1979)."""
    return _inside(t, lambda t: 3 * jnp.log1p(-t * _root(t)))


@_radial
def cosine(t):
    """cos(πu/2)."""

    def log_cosine(t):
        x = (math.pi / 2) ** 2 * t  # angle²
        near = x < 1
        # cos(angle) = sin(π/2 (1 - u)) keeps its relative precision where it vanishes, at u = 1
        u = jnp.sqrt(jnp.where(near, 0.5, t))
        far = jnp.log(jnp.sin(math.pi / 2 * (1 - u)))
        return jnp.where(near, jnp.log1p(_series(jnp.where(near, x, 0.0), -1)), far)

    return _inside(t, log_cosine)


BY_NAME: dict[str, Profile] = {
    kernel.__name__: kernel
    for kernel in (
        gaussian, boxcar, triangular, epanechnikov, biweight, triweight, tricube, cosine, logistic,
        laplace,
    )
}  # fmt: skip
