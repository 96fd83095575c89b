"""Attention whose sequence is spread over the devices of a mesh axis. (Sequence parallelism.)

Three ways, with the same meaning as on one device, for any order of derivative:

- `how="heads"`: an all-to-all gives each device some heads with their whole sequence, and another
  one gives the outputs back (DeepSpeed-Ulysses: Jacobs et al. 2023). Any slot; the devices divide
  the heads.
- `how="ring"`: keys and values go from device to device, the online softmax goes on (Ring
  Attention: Liu et al. 2023). Softmax, also with sinks, and Sigmoid. No device has all keys.
- `how="gather"`: each device gets all keys and values. Any slot.

Slots mean what they mean on one device: indices are those of the whole sequence, arrays in slots
are whole, dropout drops the same weights. Blocks that a static mask empties are skipped.
"""

from attn_jax.sharded.attend import attention
from attn_jax.sharded.layout import zigzag

__all__ = ["attention", "zigzag"]
