"""Experiments on attn_jax: one folder each, one command line (`python -m experiments NAME`)."""
