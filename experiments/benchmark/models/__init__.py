"""Whole models measured beside their Flax and PyTorch twins."""
