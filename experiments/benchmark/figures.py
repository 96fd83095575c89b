"""The benchmark's pictures: growth against n with its slopes, and a roofline bar for each row."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attn_jax.plots.style import FAINT, INK, PALETTE, styled
from experiments.benchmark.implementations import IMPLEMENTATIONS
from experiments.benchmark.report import growth, peaks, seconds, size, slope
from experiments.benchmark.rows import Row

MIB = 2**20
MARKERS = "os^vD<>phX"  # with the dashes they tell apart who shares a colour


def draw(rows: Sequence[Row], machine: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure)."""
    for curve, sweeps in growth(rows).items():
        yield "growth_" + "_".join(curve), growth_figure(sweeps, ", ".join(curve))
    timed = [row for row in rows if row.run_seconds is not None]
    for direction in dict.fromkeys(row.direction for row in timed):
        own = [row for row in timed if row.direction == direction]
        yield f"roofline_{direction}", roofline_figure(own, machine)


def growth_figure(sweeps: Mapping[str, Sequence[Row]], title: str) -> Figure:
    """Seconds and peak memory against n, both logarithmic, each slope in the legend."""
    with styled():
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        times, memories = figure.subplots(1, 2)
        for name, rows in sweeps.items():
            _curve(times, name, "time", seconds(rows))
            _curve(memories, name, "memory", [(n, peak / MIB) for n, peak in peaks(rows)])
        times.set(ylabel="seconds")
        memories.set(ylabel="MiB beyond the arguments")
        sizes = sorted({size(row) for rows in sweeps.values() for row in rows})
        for ax in (times, memories):
            _style(ax)
            ax.set(xscale="log", yscale="log", xlabel=f"queries = keys = n\n({title})")
            ax.set_xticks(sizes, [f"{n // 1024}k" for n in sizes])
            ax.minorticks_off()
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return figure


def roofline_figure(rows: Sequence[Row], machine: Mapping[str, Any]) -> Figure:
    """A bar for each row, its share of the matmul peak; the tick is what memory's rate allows."""
    with styled():
        figure = Figure(figsize=(7, 1 + 0.19 * len(rows)), layout="constrained")
        ax = figure.subplots()
        places = range(len(rows), 0, -1)
        shares = [100 * row.fraction_of_matmul for row in rows]
        colors = [PALETTE[_number(row.implementation) % len(PALETTE)] for row in rows]
        ax.barh(places, shares, height=0.7, color=colors)
        for place, row in zip(places, rows, strict=True):
            roof = 100 * attainable(row, machine)
            (tick,) = ax.plot([roof, roof], [place - 0.42, place + 0.42], color=INK, lw=1.2)
        labels = [
            f"{r.shape}, {r.score}, {r.normalizer}, {r.dtype}: {r.implementation}" for r in rows
        ]
        ax.set_yticks(places, labels, fontsize=7)
        ax.set_ylim(0.4, len(rows) + 0.6)
        ax.set_xlabel("% of the measured peak of matrix products")
        tick.set_label("attainable: min(peak, FLOP/byte × memory's rate)")
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
        _style(ax)
    return figure


def attainable(row: Row, machine: Mapping[str, Any]) -> float:
    """Return the roof as a share of the matmul peak. (Williams, Waterman & Patterson 2009.)"""
    by_memory = row.flop / row.least_bytes * machine["memory_gb_per_second"]
    return min(1.0, by_memory / machine["matmul_gflop_per_second"][row.dtype])


def _curve(ax: Axes, name: str, what: str, points: Sequence[tuple[float, float]]) -> None:
    if not points:
        return
    p, number = slope(points), _number(name)
    ax.plot(
        *zip(*points, strict=True),
        label=name if p is None else f"{name}: {what} ∝ n^{p:.2f}",
        color=PALETTE[number % len(PALETTE)],
        linestyle="-" if number < len(PALETTE) else "--",
        marker=MARKERS[number % len(MARKERS)],
        ms=4,
        mew=0,
    )


def _number(name: str) -> int:
    """The same implementation has the same colour and marker in every picture."""
    return list(IMPLEMENTATIONS).index(name)


def _style(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(which="both", length=2.5, width=0.6)
    ax.grid(True, which="major", color=FAINT, alpha=0.4)
