"""Attention whose sequence is spread over eight devices, against dense attention on one."""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import attn_jax
from attn_jax import Causal, Dropout, Sigmoid, Softmax, multi_head_attention, sharded
from tests import members
from tests.tolerance import assert_trees_close

DEVICES = 8
SIZES = {"q": 32, "k": 48, "d": 3, "e": 2}
HEADS = 8, 8


def rows():
    """Each member once, with the first of the other slots, and what only many heads have."""
    found = {}
    for slots in members.in_turn(**members.SLOTS):
        arrays = {name: each.arrays(SIZES) for name, each in slots.items()}
        made = {name: each.slot(arrays[name]) for name, each in slots.items()}
        found[", ".join(map(str, slots.values()))] = made
    rng = np.random.default_rng(0)
    found["sinks of heads"] = {"normalizer": Softmax(jnp.asarray(rng.normal(size=HEADS[0])))}
    found["dropout"] = {"dropout": Dropout(0.4, jax.random.key(1)), "mask": Causal(16)}
    return found


def operands():
    rng = np.random.default_rng(5)
    shapes = [(SIZES[n], heads, SIZES[d]) for n, heads, d in ("q0d", "k1d", "k1e")] if False else [
        (SIZES["q"], HEADS[0], SIZES["d"]),
        (SIZES["k"], HEADS[1], SIZES["d"]),
        (SIZES["k"], HEADS[1], SIZES["e"]),
    ]
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)
