"""ONNX's operators Attention and FlexAttention, carried out by attn_jax.

The operators' semantics are those of the schemas in `onnx.defs` (opsets 23 to 25, preview 1):
inputs are [B, heads, length, features], or [B, length, heads · features] with counts of heads; a
cache of earlier keys comes in and the longer one goes out; positions count from the first key, so
that query i of this call stands at position `offset + i`.

What `dot_product_attention` says in its arguments goes there; a soft cap, a softmax in another
precision, scores on the way and FlexAttention's graphs are slots of `attention`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from attn_jax import (
    Bias,
    Causal,
    Dense,
    Padding,
    ScaledDot,
    SoftCap,
    Softmax,
    Window,
    attention,
    attention_weights,
    chain,
    dot_product_attention,
)

INPUTS = ("query", "key", "value", "mask", "past_key", "past_value", "key_lengths")
SCORES, CAPPED, BIASED, WEIGHTS = range(4)  # the stages that qk_matmul_output_mode names


def evaluate(node, arrays):
    """The outputs that an onnx node names, from the arrays of the inputs that it names."""
    arrays = iter(arrays)
    inputs = [jnp.asarray(next(arrays)) if name else None for name in node.input]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    operator = {"Attention": attention_operator, "FlexAttention": flex_attention_operator}
    if len(node.output) == 4:
        attributes.setdefault("qk_matmul_output_mode", SCORES)
    outputs = operator[node.op_type](*inputs, **attributes)
    return [output for name, output in zip(node.output, outputs, strict=False) if name]


def attention_operator(
    query,
    key,
    value,
    mask=None,
    past_key=None,
    past_value=None,
    key_lengths=None,
    *,
    is_causal=0,
    kv_num_heads=None,
    left_window_size=-1,
    q_num_heads=None,
    qk_matmul_output_mode=None,
    right_window_size=-1,
    scale=None,
    softcap=0.0,
    softmax_precision=None,
):
    """Y, present_key, present_value, and qk_matmul_output where it has a mode."""
    flat = query.ndim == 3
    if flat:
        query = _split_heads(query, q_num_heads)
        key, value = _split_heads(key, kv_num_heads), _split_heads(value, kv_num_heads)
    offset = 0
    if past_key is not None:
        offset = past_key.shape[2]
        key = jnp.concatenate([past_key, key], axis=2)
        value = jnp.concatenate([past_value, value], axis=2)
    elif key_lengths is not None:
        offset = key_lengths - query.shape[2]
    bias, mask = _bias_and_mask(mask, key.shape[2])
    window = tuple(None if size < 0 else size for size in (left_window_size, right_window_size))
    positions = {"is_causal": bool(is_causal), "window": window, "offset": offset}
    given = {"bias": bias, "mask": mask, "key_lengths": key_lengths}
    slots = {"score": ScaledDot(scale), "normalizer": Softmax()}
    if softmax_precision is not None:
        slots["normalizer"] = _softmax_in(onnx.helper.tensor_dtype_to_np_dtype(softmax_precision))

    if softcap or softmax_precision is not None:
        output = _heads(attention, query, key, value, **given, **positions, cap=softcap, **slots)
    else:
        output = _drop_in(query, key, value, **given, **positions, scale=scale)

    if flat:
        output = jnp.swapaxes(output, 1, 2)
        output = output.reshape(*output.shape[:2], -1)
    stage = qk_matmul_output_mode
    if stage is None:
        return output, key, value
    if stage < WEIGHTS:
        slots |= {"normalizer": lambda scores, where=None, axis=-1: scores, "mask_as_mod": True}
    if stage < BIASED:
        given = dict.fromkeys(given)
        positions = {"is_causal": False, "window": (None, None), "offset": 0}
    cap = 0.0 if stage == SCORES else softcap
    scores = _heads(attention_weights, query, key, **given, **positions, cap=cap, **slots)
    return output, key, value, scores.astype(query.dtype)


def flex_attention_operator(
    query, key, value, *, scale=None, score_mod=None, prob_mod=None, softmax_precision=None
):
    """Y. The graphs become a score_mod and a normalizer."""
    given = dict.fromkeys(("bias", "mask", "key_lengths"))
    positions = {"is_causal": False, "window": (None, None), "offset": 0}
    softmax = _softmax_in(
        onnx.helper.tensor_dtype_to_np_dtype(softmax_precision or onnx.TensorProto.FLOAT)
    )

    def modified_scores(scores, query_index, key_index):
        return run_graph(score_mod, scores[None, None])[0, 0]

    def modified_softmax(scores, where=None, axis=-1):
        return run_graph(prob_mod, softmax(scores, where, axis)[None, None])[0, 0]

    slots = {"score": ScaledDot(scale), "normalizer": modified_softmax if prob_mod else softmax}
    if score_mod:
        slots["score_mod"] = modified_scores
    return (_heads(attention, query, key, value, **given, **positions, **slots),)


def _drop_in(query, key, value, bias, mask, key_lengths, is_causal, window, offset, scale):
    """`dot_product_attention`, whose layout is [B, length, heads, features]."""
    options = {"key_value_seq_lengths": key_lengths, "scale": scale}
    if isinstance(offset, int) and offset == 0:
        options |= {"is_causal": is_causal, "local_window_size": window}
    elif is_causal or window != (None, None):
        batch, t, s = query.shape[0], query.shape[2], key.shape[2]
        offsets = jnp.broadcast_to(offset, batch)
        seen = jax.vmap(lambda o: _positions(is_causal, window, o).dense(t, s))(offsets)[:, None]
        mask = seen if mask is None else seen & mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    turned = [jnp.swapaxes(each, 1, 2) for each in (query, key, value)]
    return jnp.swapaxes(dot_product_attention(*turned, bias, mask, **options), 1, 2)


def _heads(
    function,
    *qkv,
    bias,
    mask,
    key_lengths,
    is_causal,
    window,
    offset,
    cap=0.0,
    mask_as_mod=False,
    **slots,
):
    """`attention` or `attention_weights` of each head of [B, heads, length, features].

    A masked weight is 0 whatever the normalizer; `mask_as_mod` makes the mask a score mod, so that
    masked scores show as -inf.
    """
    query, key, *_ = qkv
    b, n, t, _ = query.shape
    qkv = [each.repeat(n // each.shape[1], axis=1) for each in qkv]
    arrays = {"bias": bias, "mask": mask, "key_length": key_lengths, "offset": offset}
    for name in ("bias", "mask"):
        if arrays[name] is not None:
            arrays[name] = jnp.broadcast_to(arrays[name], (b, n, t, key.shape[2]))
    for name in ("key_length", "offset"):
        if arrays[name] is not None:
            each = jnp.asarray(arrays[name]).reshape(-1, 1)
            arrays[name] = jnp.broadcast_to(each, (b, n))

    def head(qkv, arrays):
        allowed = [_positions(is_causal, window, arrays["offset"])]
        if arrays["key_length"] is not None:
            allowed.append(Padding(arrays["key_length"]))
        if arrays["mask"] is not None:
            allowed.append(Dense(arrays["mask"]))
        mods = [SoftCap(cap)] if cap else []
        mods += [Bias(arrays["bias"])] if arrays["bias"] is not None else []
        mods += [slots["score_mod"]] if "score_mod" in slots else []
        combined = functools.reduce(lambda one, other: one & other, allowed)
        if mask_as_mod:
            mods.append(lambda scores, i, j: jnp.where(combined(i, j), scores, -jnp.inf))
        own = {"score_mod": chain(*mods) if mods else None}
        own["mask"] = None if mask_as_mod else combined
        return function(*qkv, **slots | own)

    return jax.vmap(jax.vmap(head))(qkv, arrays)


def _positions(is_causal, window, offset):
    """Causal and window, for queries that begin at position `offset`."""
    causal = Causal(offset) if is_causal else Window(None, None)
    return causal & (lambda i, j: Window(*window)(i + offset, j))


def _bias_and_mask(mask, keys):
    """A float mask is a bias, a boolean one a mask; its missing last keys are not there."""
    if mask is None:
        return None, None
    boolean = mask.dtype == bool
    missing = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
    mask = jnp.pad(mask, missing, constant_values=False if boolean else -jnp.inf)
    return (None, mask) if boolean else (mask, None)


def _split_heads(array, heads):
    return jnp.swapaxes(array.reshape(*array.shape[:2], heads, -1), 1, 2)


def _softmax_in(dtype):
    """Softmax in at least this precision (attn_jax never goes below float32)."""

    def softmax(scores, where=None, axis=-1):
        dtypes = jnp.promote_types(scores.dtype, dtype)
        return Softmax()(scores.astype(dtypes), where=where, axis=axis)

    return softmax


def run_graph(graph, array):
    """A graph of one input and one output; integers (shapes, positions) stay in NumPy."""
    known = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    known[graph.input[0].name] = array
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        known[node.output[0]] = OPERATORS[node.op_type](
            *(known[name] for name in node.input), **attributes
        )
    return known[graph.output[0].name]


OPERATORS = {
    "Add": lambda a, b: _elementwise(jnp.add, a, b),
    "Cast": lambda a, to: a.astype(onnx.helper.tensor_dtype_to_np_dtype(to)),
    "Div": lambda a, b: _elementwise(jnp.divide, a, b),
    "Gather": lambda a, index, axis: np.take(a, index, axis),
    "GreaterOrEqual": lambda a, b: _elementwise(jnp.greater_equal, a, b),
    "Mul": lambda a, b: _elementwise(jnp.multiply, a, b),
    "Range": np.arange,
    "Reshape": lambda a, shape: a.reshape(tuple(shape)),
    "Shape": lambda a: np.array(a.shape),
    "Sub": lambda a, b: _elementwise(jnp.subtract, a, b),
    "Tanh": jnp.tanh,
    "Where": lambda where, a, b: _elementwise(jnp.where, where, a, b),
}


def _elementwise(function, *arrays):
    """ONNX broadcasts over missing leading axes; the tests' JAX wants them written out."""
    rank = max(each.ndim for each in arrays)
    return function(*(each.reshape((1,) * (rank - each.ndim) + each.shape) for each in arrays))
