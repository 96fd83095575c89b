"""Experiments on attn_jax: one file each, one command line (`python -m experiments NAME`)."""
