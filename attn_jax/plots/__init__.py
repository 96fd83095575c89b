"""Pictures of attention: heat maps of weights, fitted curves, learning curves, error against n.

`explore` makes a page to explore weights on. Each other function returns a matplotlib `Figure` and
draws with objects alone: no pyplot, no window, no lasting change to matplotlib's settings. Most
take `ax`, to draw into a figure of your own.
"""

from attn_jax.plots.explore import Page, explore
from attn_jax.plots.heatmaps import attention_heatmap, attention_heatmaps
from attn_jax.plots.lines import curve_fit, error_against_n, learning_curve
from attn_jax.plots.style import save

__all__ = [
    "Page",
    "attention_heatmap",
    "attention_heatmaps",
    "curve_fit",
    "error_against_n",
    "explore",
    "learning_curve",
    "save",
]
