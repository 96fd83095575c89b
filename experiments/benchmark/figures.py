"""The benchmark's pictures: growth against n with its slopes, and a roofline bar for each row."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attn_jax.plots.style import FAINT, INK, PALETTE, styled
from experiments.benchmark import growth
from experiments.benchmark.implementations import IMPLEMENTATIONS
from experiments.benchmark.rows import Row

MIB = 2**20
MARKERS = "os^vD<>phX"  # with the dashes they tell apart who shares a colour


def draw(rows: Sequence[Row], machine: dict[str, Any]) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure)."""
    for curve, sweeps in growth.sweeps(rows).items():
        yield "growth_" + "_".join(curve), growth_figure(sweeps, ", ".join(curve))
    by_direction: dict[str, list[Row]] = {}
    for row in rows:
        if row.run_seconds is not None:
            by_direction.setdefault(row.direction, []).append(row)
    for direction, own in by_direction.items():
        yield f"roofline_{direction}", roofline_figure(own, machine)


def growth_figure(sweeps: Sequence[growth.Sweep], title: str) -> Figure:
    """Seconds and peak memory against n, both logarithmic, each slope in the legend."""
    with styled():
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        times, memories = figure.subplots(1, 2)
        for sweep in sweeps:
            seconds = zip(sweep.n, sweep.seconds, strict=True)
            peaks = [(n, each / MIB) for n, each in zip(sweep.n, sweep.bytes, strict=True) if each]
            _curve(times, sweep.implementation, "time", seconds)
            _curve(memories, sweep.implementation, "memory", peaks)
        times.set(ylabel="seconds")
        memories.set(ylabel="MiB beyond the arguments")
        sizes = sorted({n for sweep in sweeps for n in sweep.n})
        for ax in (times, memories):
            _dress(ax)
            ax.set(xscale="log", yscale="log", xlabel=f"queries = keys = n\n({title})")
            ax.set_xticks(sizes, [f"{n // 1024}k" for n in sizes])
            ax.minorticks_off()
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    return figure


def roofline_figure(rows: Sequence[Row], machine: dict[str, Any]) -> Figure:
    """A bar for each row, its share of the matmul peak; the tick is what memory's rate allows."""
    with styled():
        figure = Figure(figsize=(7, 1 + 0.19 * len(rows)), layout="constrained")
        ax = figure.subplots()
        places = range(len(rows), 0, -1)
        ax.barh(
            places,
            [100 * row.fraction_of_matmul for row in rows],
            height=0.7,
            color=[_color(row.implementation) for row in rows],
        )
        for place, row in zip(places, rows, strict=True):
            roof = 100 * attainable(row, machine)
            (tick,) = ax.plot([roof, roof], [place - 0.42, place + 0.42], color=INK, lw=1.2)
        ax.set_yticks(places, [_label(row) for row in rows], fontsize=7)
        ax.set_ylim(0.4, len(rows) + 0.6)
        ax.set_xlabel("% of the measured peak of matrix products")
        tick.set_label("attainable: min(peak, FLOP/byte × memory's rate)")
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
        _dress(ax)
    return figure


def attainable(row: Row, machine: dict[str, Any]) -> float:
    """Return the roof as a share of the matmul peak. (Williams, Waterman & Patterson 2009.)"""
    by_memory = row.flop / row.least_bytes * machine["memory_gb_per_second"]
    return min(1.0, by_memory / machine["matmul_gflop_per_second"][row.dtype])


def _curve(ax: Axes, name: str, what: str, points: Iterable[tuple[float, float]]) -> None:
    points = list(points)
    if not points:
        return
    n, values = zip(*points, strict=True)
    slope = growth.exponent(n, values)
    label = name if slope is None else f"{name}: {what} ∝ n^{slope:.2f}"
    number = list(IMPLEMENTATIONS).index(name)
    look = {"marker": MARKERS[number % len(MARKERS)], "ms": 4, "mew": 0, "color": _color(name)}
    ax.plot(n, values, linestyle="-" if number < len(PALETTE) else "--", label=label, **look)


def _color(name: str) -> str:
    """The same implementation has the same colour in every picture."""
    return PALETTE[list(IMPLEMENTATIONS).index(name) % len(PALETTE)]


def _label(row: Row) -> str:
    return f"{row.shape}, {row.score}, {row.normalizer}, {row.dtype}: {row.implementation}"


def _dress(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(which="both", length=2.5, width=0.6)
    ax.grid(True, which="major", color=FAINT, alpha=0.4)
