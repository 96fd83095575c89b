"""Weights of open models in, and out: GPT-2, Llama, Mistral, Qwen, Gemma 2, gpt-oss and others.

    model = interop.from_torch("path/to/folder")      # config.json and *.safetensors
    model = interop.from_torch(model_of_transformers)
    model = interop.from_torch(arrays, config)        # a state dict with transformers' names
    arrays = interop.to_torch(model)                  # the state dict again, of NumPy arrays

What comes out is a `LanguageModel`, `TransformerEncoder`, `TransformerSeq2Seq` or, of Whisper, the
`TransformerDecoder`, without dropout. `FAMILIES` are the families, by their `model_type`; each is a
function of the configuration that gives our options and a table of names.
"""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax.checks import require
from attn_jax.nn.interop import decoders, encoders
from attn_jax.nn.interop.settings import Config, Family
from attn_jax.nn.over_layers import Pattern

FAMILIES: dict[str, Callable[[Config, Collection[str]], Family]] = (
    decoders.FAMILIES | encoders.FAMILIES
)


def from_torch(source: Any, config: Config | None = None, *, dtype: Any = None) -> nnx.Module:
    """Our module with the weights of an open model.

    Args:
      source: a folder with config.json and *.safetensors files, a model of `transformers`, or a
        state dict: arrays by their names there.
      config: of a state dict, the contents of its config.json.
      dtype: of the weights; None: as they are stored.

    Raises:
      ValueError: the family is none of `FAMILIES`, a setting is one that our modules do not have,
        weights are missing or left over, or of another shape; a file is damaged. The names are
        given. Heads that our modules have no place for (BERT's pooler, classifiers) are left out.
    """
    state, config = _read(source, config)
    family = _family(config, state)
    abstract = nnx.eval_shape(lambda: family.build(nnx.Rngs(0)))
    graphdef, shapes = nnx.split(abstract)
    wanted = {path: variable.get_value() for path, variable in nnx.to_flat_state(shapes)}
    pattern = _patterns(abstract)
    found = _loaded(family, state)
    values = {path: _gathered(path, pattern, found, array) for path, array in wanted.items()}
    _require_all_used(found, wanted, pattern)
    flat = {
        path: variable.replace(_cast(values[path], wanted[path], dtype))
        for path, variable in nnx.to_flat_state(shapes)
    }
    module: Any = nnx.merge(graphdef, nnx.from_flat_state(flat))
    module.torch_config = nnx.static(json.dumps(dict(config), default=str, sort_keys=True))
    module.torch_names = nnx.static(tuple(state))
    return module


def to_torch(module: Any) -> dict[str, np.ndarray]:
    """The state dict of a module that `from_torch` made, trained since or not, as NumPy arrays.

    Names are those of the class with a head; arrays that are copies of another one are left out.

    Raises:
      ValueError: the module is not one that `from_torch` made.
    """
    made = hasattr(module, "torch_config")
    require(made, "module", "be one that from_torch made: another has no family", type(module))
    config = json.loads(module.torch_config)
    family = _family(config, module.torch_names)
    pattern = _patterns(module)
    arrays = {}
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        arrays |= _apart(path, pattern, np.asarray(variable.get_value()))
    state = {}
    for row in family.rows:
        if row.theirs not in state:
            ours = (row.ours,) if isinstance(row.ours, str) else row.ours
            parts = tuple(arrays[name] for name in ours)
            saved = row.change.save(parts[0] if isinstance(row.ours, str) else parts)
            state[row.theirs] = np.ascontiguousarray(saved)
    return state


def _family(config: Config, names: Collection[str]) -> Family:
    kind = config.get("model_type")
    require(kind in FAMILIES, "config", f"have a model_type of {sorted(FAMILIES)}", repr(kind))
    try:
        return FAMILIES[kind](config, names)
    except KeyError as error:
        raise ValueError(f"config must have {error}, as {kind} has. It has none.") from None


def _read(source: Any, config: Config | None) -> tuple[dict[str, Any], Config]:
    """The arrays by name, and the configuration."""
    if isinstance(source, str | Path):
        folder = Path(source)
        file = folder / "config.json"
        require(file.is_file(), "source", "be a folder with a config.json", str(source))
        config = json.loads(file.read_text()) if config is None else config
        return _read_files(folder), config
    if hasattr(source, "state_dict") and hasattr(source, "config"):
        config = source.config.to_dict() if config is None else config
        source = source.state_dict()
    rule = "be a folder, a model of transformers, or a state dict"
    require(isinstance(source, Mapping), "source", rule, type(source).__name__)
    require(config is not None, "config", "be given with a state dict", "None")
    return {name: _array(array) for name, array in source.items()}, config


def _read_files(folder: Path) -> dict[str, jax.Array]:
    import safetensors

    files = sorted(folder.glob("*.safetensors"))
    require(len(files) > 0, "source", "hold *.safetensors files", str(folder))
    state = {}
    for file in files:
        try:
            with safetensors.safe_open(file, framework="flax") as opened:
                names = opened.keys()
                state |= {name: opened.get_tensor(name) for name in names}
        except safetensors.SafetensorError as error:
            raise ValueError(f"{file} is damaged, or no safetensors file: {error}") from None
    return state


def _array(array: Any) -> Any:
    """A NumPy or JAX array of what may be a PyTorch tensor."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":  # NumPy has none
            return jnp.asarray(array.float().numpy(), jnp.bfloat16)
        return array.numpy()
    return array


def _loaded(family: Family, state: Mapping[str, Any]) -> dict[str, Any]:
    """Our arrays, each layer's by itself: {"stack.0.attention.query.kernel": …}."""
    names = {row.theirs for row in family.rows}
    state = {
        family.prefix + name if family.prefix + name in names else name: array
        for name, array in state.items()
    }  # the bare model does without the prefix
    lost = dict.fromkeys(row.theirs for row in family.rows if not row.optional)
    missing = [name for name in lost if name not in state]
    require(not missing, "source", f"hold {len(missing)} more weights", _few(missing))
    elsewhere = tuple(each.removeprefix(family.prefix) for each in family.heads) + family.heads
    known = (*family.copies, *(each.removeprefix(family.prefix) for each in family.copies))
    left = [
        name
        for name in state
        if not (name in names or name.startswith(elsewhere) or name.endswith(known + _BUFFERS))
    ]
    require(not left, "source", f"hold no other weights than the family's: {len(left)}", _few(left))
    found = dict(family.constants)
    for row in family.rows:
        if row.theirs in state:
            ours = (row.ours,) if isinstance(row.ours, str) else row.ours
            parts = row.change.load(state[row.theirs])
            parts = (parts,) if isinstance(row.ours, str) else parts
            found |= dict(zip(ours, parts, strict=True))
    return found


UNROLLED = 0  # layers that repeat, where each has arrays of its own

# arrays that older checkpoints store and that are computed: masks, rates, positions
_BUFFERS = (".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq", ".attention.bias")
_BUFFERS += (".attention.masked_bias", "position_ids")


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _patterns(module: nnx.Module) -> dict[str, int]:
    """Where stacks are, and how many layers repeat in each: {"stack": 2}; or it is unrolled."""
    found = {}
    for path, each in nnx.iter_modules(module):
        if hasattr(each, "blocks") and hasattr(each, "remat"):
            blocks = each.blocks
            size = len(blocks.blocks) if isinstance(blocks, Pattern) else 1
            size = UNROLLED if isinstance(blocks, nnx.List) else size
            found[".".join(map(str, path))] = size
    return found


def _place(path: tuple, patterns: dict[str, int]) -> tuple[str, int, int, str] | None:
    """Of an array in a stack: the stack, which of the repeated layers, of how many, the rest."""
    if "blocks" not in path:
        return None
    at = path.index("blocks")
    stack = ".".join(map(str, path[:at]))
    size, rest = patterns[stack], path[at + 1 :]
    start = {1: 0, UNROLLED: 1}.get(size, 2)  # what comes before: "0", or "blocks", "0"
    place = int(rest[start - 1]) if start else 0
    rest = rest[start:]
    return stack, place, size, ".".join(map(str, rest))


def _names(path: tuple, patterns: dict[str, int], layers: int) -> list[str]:
    """The names of an array, or of its part of each layer."""
    inside = _place(path, patterns)
    if inside is None:
        return [".".join(map(str, path))]
    stack, place, size, rest = inside
    return [f"{stack}.{group * size + place}.{rest}" for group in range(layers)]


def _gathered(path: tuple, patterns: dict[str, int], found: dict[str, Any], wanted: Any) -> Any:
    """The value of a variable of these names, checked against its shape."""
    stacked = _place(path, patterns) is not None
    names = _names(path, patterns, wanted.shape[0] if stacked else 0)
    lost = [name for name in names if name not in found]
    require(not lost, "source", "have what our module needs", _few(lost))
    shape = wanted.shape[1:] if stacked else wanted.shape
    for name in names:
        got = np.shape(found[name])
        rule = f"hold {name} of shape {shape}, as its config says"
        require(got == shape, "source", rule, f"{got}")
    if not stacked:
        return found[names[0]]
    parts = [found[name] for name in names]
    return np.stack(parts) if isinstance(parts[0], np.ndarray) else jnp.stack(parts)


def _require_all_used(found: dict, wanted: dict, patterns: dict[str, int]) -> None:
    used = set()
    for path, array in wanted.items():
        stacked = _place(path, patterns) is not None
        used |= set(_names(path, patterns, array.shape[0] if stacked else 0))
    left = sorted(set(found) - used)
    require(not left, "source", "hold nothing that our module has no place for", _few(left))


def _apart(path: tuple, patterns: dict[str, int], array: np.ndarray) -> dict[str, np.ndarray]:
    """Each layer's part of a variable, by its name."""
    inside = _place(path, patterns)
    if inside is None:
        return {".".join(map(str, path)): array}
    if inside[2] == UNROLLED:
        return {"{}.{}.{rest}".format(*inside, rest=inside[3]): array}
    return dict(zip(_names(path, patterns, len(array)), array, strict=True))


def _cast(array: Any, wanted: Any, dtype: Any) -> jax.Array:
    floating = jnp.issubdtype(wanted.dtype, jnp.floating)
    return jnp.asarray(array, dtype if floating and dtype is not None else None)
