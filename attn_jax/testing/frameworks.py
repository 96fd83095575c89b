"""A stranger's function as a function of NumPy arrays: NumPy, JAX and PyTorch alike."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn_jax.checks import require

DTYPES = ("float16", "bfloat16", "float32", "float64")
Arrays = Sequence[np.ndarray]
Mask = np.ndarray | None


class NumPy:
    """Functions of NumPy arrays; gradients are central differences in float64."""

    name = "numpy"
    dtypes: tuple[str, ...] = ("float16", "float32", "float64")
    transforms: frozenset[str] = frozenset()

    def __init__(self, fn: Callable[..., Any], mask_name: str = "mask"):
        self.fn, self.mask_name = fn, mask_name

    def call(self, arrays: Sequence[Any], mask: Any) -> Any:
        """The function on its own kind of arrays; a mask is given only where there is one."""
        return self.fn(*arrays) if mask is None else self.fn(*arrays, **{self.mask_name: mask})

    def native(self, array: Any) -> Any:
        """The array as the function takes it."""
        return array

    def plain(self, output: Any) -> tuple[np.ndarray, str]:
        """The output as float64, and the name of its dtype."""
        output = np.asarray(output)
        return output.astype(np.float64), output.dtype.name

    def raw(self, arrays: Arrays, mask: Mask = None) -> tuple[np.ndarray, str]:
        """The function's output on these arrays, without compilation."""
        native = [self.native(each) for each in arrays]
        return self.plain(self.call(native, None if mask is None else self.native(mask)))

    def dtype_of(self, arrays: Arrays) -> str:
        """The dtype of the output for these arrays."""
        return self.raw(arrays)[1]

    def __call__(self, arrays: Arrays, mask: Mask = None) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self.raw(arrays, mask)[0]

    def gradient(self, arrays: Arrays, mask: Mask, cotangent: np.ndarray) -> list[np.ndarray]:
        """The gradient of Σ cotangent · output in each of the arrays."""
        arrays = [np.array(each, np.float64) for each in arrays]
        gradients = [np.zeros(each.shape) for each in arrays]
        for array, gradient in zip(arrays, gradients, strict=True):
            for place in np.ndindex(array.shape):
                here = array[place]
                step = 1e-6 * max(1.0, abs(here)) if np.isfinite(here) else 1e-6
                array[place] = here + step
                above = self(arrays, mask)
                array[place] = here - step
                below = self(arrays, mask)
                array[place] = here
                gradient[place] = np.sum(cotangent * (above - below)) / (2 * step)
        return gradients


class JAX(NumPy):
    """JAX functions, compiled where they can be."""

    name = "jax"
    transforms = frozenset({"autodiff", "jit", "vmap"})

    def __init__(self, fn: Callable[..., Any], mask_name: str = "mask"):
        super().__init__(fn, mask_name)
        self.dtypes = DTYPES if jax.config.read("jax_enable_x64") else DTYPES[:-1]
        self._compiled: Any = jax.jit(self.call)
        self._compiled_pull: Any = jax.jit(self._pull)
        self._vmapped: Any = jax.jit(jax.vmap(self.call))

    def native(self, array: Any) -> Any:
        return jnp.asarray(array)

    def plain(self, output: Any) -> tuple[np.ndarray, str]:
        if not isinstance(output, jax.Array):
            return super().plain(output)
        return np.asarray(output).astype(np.float64), output.dtype.name

    def dtype_of(self, arrays: Arrays) -> str:
        try:
            return jax.eval_shape(self.call, tuple(map(self.native, arrays)), None).dtype.name
        except jax.errors.JAXTypeError:
            return super().dtype_of(arrays)

    def jitted(self, arrays: Arrays, mask: Mask = None) -> np.ndarray:
        """The output of the compiled function."""
        return self.plain(self._compiled(tuple(arrays), mask))[0]

    def vmapped(self, arrays: Arrays, mask: Mask = None) -> np.ndarray:
        """The output of `jax.vmap` over a leading axis of everything."""
        return self.plain(self._vmapped(tuple(arrays), mask))[0]

    def __call__(self, arrays: Arrays, mask: Mask = None) -> np.ndarray:
        try:
            return self.jitted(arrays, mask)
        except jax.errors.JAXTypeError:  # it depends on values: jit-equals-eager reports it
            return self.raw(arrays, mask)[0]

    def _pull(self, arrays: Any, mask: Any, cotangent: Any) -> Any:
        output, pull = jax.vjp(lambda *each: self.call(each, mask), *arrays)
        return pull(jnp.asarray(cotangent).astype(output.dtype))

    def gradient(self, arrays: Arrays, mask: Mask, cotangent: np.ndarray) -> list[np.ndarray]:
        cotangent = np.asarray(cotangent, np.float32)  # multiples of ¼: exact in every dtype
        try:
            gradients = self._compiled_pull(tuple(arrays), mask, cotangent)
        except jax.errors.JAXTypeError:
            native = tuple(map(self.native, arrays))
            gradients = self._pull(native, None if mask is None else self.native(mask), cotangent)
        return [self.plain(each)[0] for each in gradients]


class PyTorch(NumPy):
    """PyTorch functions, on the CPU."""

    name = "torch"
    dtypes = DTYPES
    transforms = frozenset({"autodiff", "vmap"})

    def native(self, array: Any) -> Any:
        import torch

        array = np.array(array)  # torch wants to own writable memory
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
        return torch.from_numpy(array)

    def plain(self, output: Any) -> tuple[np.ndarray, str]:
        import torch

        if not isinstance(output, torch.Tensor):
            return super().plain(output)
        return output.detach().to(torch.float64).numpy(), str(output.dtype).removeprefix("torch.")

    def vmapped(self, arrays: Arrays, mask: Mask = None) -> np.ndarray:
        """The output of `torch.vmap` over a leading axis of everything."""
        import torch

        native = [self.native(each) for each in arrays]
        native_mask = None if mask is None else self.native(mask)
        mapped = torch.vmap(self.call, in_dims=(0, None if mask is None else 0))
        return self.plain(mapped(tuple(native), native_mask))[0]

    def gradient(self, arrays: Arrays, mask: Mask, cotangent: np.ndarray) -> list[np.ndarray]:
        import torch

        native = [self.native(each).requires_grad_() for each in arrays]
        output = self.call(native, None if mask is None else self.native(mask))
        cotangent = self.native(np.asarray(cotangent)).to(output.dtype)
        gradients = torch.autograd.grad(output, native, cotangent, allow_unused=True)
        return [
            np.zeros(array.shape) if each is None else self.plain(each)[0]
            for array, each in zip(arrays, gradients, strict=True)
        ]


FRAMEWORKS: dict[str, type[NumPy]] = {"numpy": NumPy, "jax": JAX, "torch": PyTorch}


def framework_of(fn: Callable[..., Any], probe: Arrays) -> str:
    """The framework of a function, told by what it takes and returns."""
    refused = []
    for name, known in FRAMEWORKS.items():
        if name == "torch" and "torch" not in sys.modules:
            continue  # a PyTorch function would have imported it
        try:
            with np.errstate(all="ignore"):
                output = fn(*map(known(fn).native, probe))
        except Exception as error:
            refused.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if isinstance(output, jax.Array):
            return "jax"
        return name if isinstance(output, np.ndarray | np.generic) else "torch"
    require(False, "fn", "take arrays of NumPy, JAX or PyTorch", "; ".join(refused))
    raise AssertionError
