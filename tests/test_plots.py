import itertools

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from attn_jax import plots
from attn_jax.plots.heatmaps import MOST_CELLS


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def mesh(ax):
    (result,) = (each for each in ax.collections if type(each).__name__ == "QuadMesh")
    return result


def drawn(ax):
    """The cells of a heat map and their edges along x and y."""
    corners = mesh(ax).get_coordinates()
    return np.asarray(mesh(ax).get_array()), corners[0, :, 0], corners[:, 0, 1]


def tick_texts(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def line(ax, label):
    (result,) = (each for each in ax.lines if each.get_label() == label)
    return result


def assert_no_overlap(texts):
    boxes = [text.get_window_extent() for text in texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def drawn_texts(ax):
    """The title, names and numbers of axes; ticks beyond its limits are not drawn."""
    yield from (ax.title, *ax.texts)
    for axis in (ax.xaxis, ax.yaxis):
        low, high = sorted(axis.get_view_interval())
        yield axis.label
        for tick in axis.get_major_ticks():
            if low <= tick.get_loc() <= high:
                yield from (each for each in (tick.label1, tick.label2) if each.get_visible())


def assert_readable(figure):
    """Every text is inside the figure, and none lies over another; warnings are errors."""
    figure.draw_without_rendering()
    texts = [each for ax in figure.axes for each in drawn_texts(ax) if each.get_text()]
    page = figure.bbox.padded(2)
    for each in texts:
        box = each.get_window_extent()
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, each
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, each
    slanted = [each for each in texts if each.get_rotation() % 90]
    assert_no_overlap([each for each in texts if each not in slanted])
    for one, other in itertools.pairwise(slanted):
        (x, y), (next_x, next_y) = (
            each.get_transform().transform(each.get_position()) for each in (one, other)
        )
        if abs(y - next_y) < 1 and x < next_x:  # beside each other, under the same cells
            height = one.get_fontsize() * figure.dpi / 72
            assert (next_x - x) * np.sin(np.radians(one.get_rotation())) > 0.95 * height


# attention_heatmap


def test_heatmap_shows_index_matrix_with_query_0_on_top(rng):
    weights = rng.dirichlet(np.ones(7), 5)
    ax, bar = plots.attention_heatmap(weights, title="head 3").axes
    cells, x_edges, y_edges = drawn(ax)
    np.testing.assert_array_equal(cells, weights)
    np.testing.assert_array_equal(x_edges, np.arange(8) - 0.5)
    np.testing.assert_array_equal(y_edges, np.arange(6) - 0.5)
    assert ax.get_xlim() == (-0.5, 6.5)
    assert ax.get_ylim() == (4.5, -0.5)
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("key", "query", "head 3")
    assert bar.get_ylabel() == "weight"
    assert mesh(ax).norm.vmin == 0
    assert mesh(ax).norm.vmax == weights.max()


def test_heatmap_puts_uneven_positions_at_their_coordinates(rng):
    weights = rng.uniform(size=(2, 3))
    ax = plots.attention_heatmap(
        weights, query_labels=[1.0, 0.0], key_labels=jnp.array([0.0, 4.0, 1.0])
    ).axes[0]
    cells, x_edges, y_edges = drawn(ax)
    np.testing.assert_array_equal(cells, weights[::-1][:, [0, 2, 1]])
    np.testing.assert_array_equal(x_edges, [-0.5, 0.5, 2.5, 5.5])
    np.testing.assert_array_equal(y_edges, [-0.5, 0.5, 1.5])
    assert ax.get_ylim() == (-0.5, 1.5)


def test_heatmap_shows_the_larger_weight_of_equal_positions():
    ax = plots.attention_heatmap([[0.1, 0.7, 0.2]], key_labels=[3.0, 1.0, 3.0]).axes[0]
    cells, x_edges, _ = drawn(ax)
    np.testing.assert_array_equal(cells, [[0.7, 0.2]])
    np.testing.assert_array_equal(x_edges, [0, 2, 4])


def test_heatmap_names_tokens_literally(tmp_path):
    keys = ["a$b$", "", " ", "\n", "Привет", "x" * 40]
    figure = plots.attention_heatmap(
        np.eye(2, 6), query_labels=["le", "chat"], key_labels=keys, key_axis="source"
    )
    ax = figure.axes[0]
    assert tick_texts(ax.xaxis) == ["a$b$", "∅", "␣", "\\n", "Привет", "x" * 17 + "…"]
    assert tick_texts(ax.yaxis) == ["le", "chat"]
    assert ax.get_xlabel() == "source"
    assert all(label.get_rotation() > 0 for label in ax.get_xticklabels())
    plots.save(
        figure, tmp_path / "tokens.png"
    )  # warnings (a missing glyph, bad mathtext) are errors


LONG = "a name of twenty-five letters"


@pytest.mark.parametrize(
    ("panels", "shape", "length"),
    [(1, (1, 1), 1), (1, (1, 1), 25), (1, (1, 90), 25), (1, (60, 5), 25), (12, (3, 3), 18)],
)
def test_heatmaps_are_readable(panels, shape, length):
    """Few cells and long names, many cells, many panels with a title each."""
    rows, across = ([f"{i}".ljust(length, "w") for i in range(count)] for count in shape)
    figure = plots.attention_heatmaps(
        np.ones((panels, *shape)),
        titles=[f"{LONG[: 60 // panels + 20]} {i}" for i in range(panels)],
        query_labels=rows,
        key_labels=across,
        key_axis=LONG if panels == 1 else "key",
    )
    assert_readable(figure)


def test_heatmap_thins_the_names_of_many_tokens():
    ax = plots.attention_heatmap(np.eye(150), key_labels=[f"t{i}" for i in range(150)]).axes[0]
    assert tick_texts(ax.xaxis)[:2] == ["t0", "t3"]
    assert len(ax.get_xticks()) == 50


@pytest.mark.parametrize("count", [257, 1000])
def test_heatmap_keeps_thin_diagonals_of_large_matrices(count):
    cells, x_edges, y_edges = drawn(plots.attention_heatmap(np.eye(count)).axes[0])
    assert cells.shape == (MOST_CELLS, MOST_CELLS)
    assert np.all(np.diagonal(cells) == 1)
    assert cells.sum() < 4 * MOST_CELLS
    assert (x_edges[0], x_edges[-1]) == (y_edges[0], y_edges[-1]) == (-0.5, count - 0.5)


def test_heatmap_keeps_weights_of_clustered_positions():
    keys = np.concatenate([[0.0, 1e-6, 2e-6], [10.0]])
    cells, *_ = drawn(plots.attention_heatmap([[0.1, 0.6, 0.1, 0.2]], key_labels=keys).axes[0])
    assert cells.max() == 0.6
    assert cells[0, -1] == 0.2
    assert set(np.unique(cells)) <= {0.1, 0.2, 0.6}


@pytest.mark.parametrize("weights", [np.zeros((3, 5)), np.ones((1, 1)), np.full((2, 2), np.nan)])
def test_heatmap_of_degenerate_weights(weights, tmp_path):
    plots.save(plots.attention_heatmap(weights), tmp_path / "it.png")


def test_heatmap_draws_into_given_axes(rng):
    figure = Figure()
    ax, other = figure.subplots(1, 2)
    assert plots.attention_heatmap(rng.uniform(size=(3, 2)), ax=ax) is figure
    assert mesh(ax)
    assert not other.collections


def test_heatmaps_share_one_scale_and_one_bar(rng):
    weights = [rng.uniform(size=(3, 5)), 2 * rng.uniform(size=(3, 5))]
    figure = plots.attention_heatmaps(weights, titles=["before", "after"])
    *panels, bar = figure.axes
    assert [ax.get_title() for ax in panels] == ["before", "after"]
    assert len({(mesh(ax).norm.vmin, mesh(ax).norm.vmax) for ax in panels}) == 1
    assert [ax.get_ylabel() for ax in panels] == ["query", ""]
    assert [ax.get_xlabel() for ax in panels] == ["key", "key"]
    assert bar.get_ylabel() == "weight"


def test_heatmaps_fill_rows_evenly(rng):
    *panels, _ = plots.attention_heatmaps(rng.uniform(size=(5, 2, 2)), columns=4).axes
    assert [ax.get_ylabel() for ax in panels] == ["query", "", "", "query", ""]
    assert [ax.get_xlabel() for ax in panels] == ["", "", "key", "key", "key"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": np.ones((2, 3, 4))}, r"weights must be one matrix .* Got \(2, 3, 4\)"),
        ({"weights": np.ones((0, 3))}, r"weights must be one matrix .* Got \(0, 3\)"),
        ({"weights": np.ones((2, 3)), "key_labels": ["a", "b"]}, r"key_labels must be .* 3 .*\(2,"),
        ({"weights": np.ones((1, 2)), "key_labels": [0, np.inf]}, "key_labels must be finite"),
    ],
)
def test_heatmap_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.attention_heatmap(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": []}, "weights must be matrices of one shape"),
        ({"weights": [np.eye(2), np.eye(3)]}, r"one shape.*\(2, 2\), \(3, 3\)"),
        ({"weights": [np.eye(2)], "titles": ["a", "b"]}, "titles must be as many as weights, 1"),
        ({"weights": [np.eye(2)], "columns": 0}, "columns must be at least 1. Got 0"),
    ],
)
def test_heatmaps_refuse(arguments, message):
    with pytest.raises(ValueError, match=message):
        plots.attention_heatmaps(**arguments)


# Curves


def test_curve_fit_draws_data_truth_fits_and_band(rng):
    x, y, grid = rng.uniform(size=7), rng.uniform(size=7), np.array([1.0, 0.0, 2.0])
    fits = {"fixed": np.array([10.0, 20.0, 30.0]), "learned": jnp.array([1.0, np.nan, 3.0])}
    figure = plots.curve_fit(
        x, y, grid=grid, fits=fits, truth=grid**2, band=(grid - 1, grid + 1), y_axis="volume"
    )
    (ax,) = figure.axes
    np.testing.assert_array_equal(line(ax, "data").get_xydata(), np.stack([x, y], 1))
    np.testing.assert_array_equal(line(ax, "truth").get_xydata(), [[0, 0], [1, 1], [2, 4]])
    np.testing.assert_array_equal(line(ax, "fixed").get_ydata(), [20, 10, 30])
    np.testing.assert_array_equal(line(ax, "learned").get_ydata(), [np.nan, 1, 3])
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sorted(legend) == ["95 % band", "data", "fixed", "learned", "truth"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "volume")


def test_curve_fit_legend_hides_no_data(rng):
    grid = np.linspace(0, 1, 11)
    fits = {f"method {i}": grid for i in range(5)}
    figure = plots.curve_fit(grid, grid, grid=grid, fits=fits, title="a title")
    figure.draw_without_rendering()
    (ax,) = figure.axes
    legend, title = ax.get_legend().get_window_extent(), ax.title.get_window_extent()
    assert legend.y0 >= ax.bbox.y1
    assert title.y0 >= legend.y1 - 3


def test_lines_differ_in_colour_and_dash():
    grid = np.arange(3.0)
    (ax,) = plots.curve_fit(grid, grid, grid=grid, fits=dict.fromkeys("abcd", grid)).axes
    lines = [line(ax, label) for label in "abcd"]
    assert len({to_hex(each.get_color()) for each in lines}) == 4
    assert len({str(each._dash_pattern) for each in lines}) == 4


def test_learning_curve_puts_the_second_quantity_below():
    step = np.arange(5)
    figure = plots.learning_curve(
        step, {"loss": step + 1.0}, beside={"bandwidth": 1 / (step + 1)}, log=True
    )
    top, below = figure.axes
    assert (top.get_yscale(), below.get_yscale()) == ("log", "linear")
    assert (top.get_ylabel(), below.get_ylabel()) == ("loss", "bandwidth")
    assert (top.get_xlabel(), below.get_xlabel()) == ("", "step")
    np.testing.assert_array_equal(line(below, "bandwidth").get_ydata(), 1 / (step + 1))


def test_learning_curve_of_several_losses_has_a_legend():
    (ax,) = plots.learning_curve([0, 1], {"train": [1, 2], "validation": [2, 3]}).axes
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["train", "validation"]


def test_a_loss_that_is_known_less_often_has_its_own_steps():
    losses = {"train": [3.0, 2.0, 1.0, 0.5], "dev": ([1, 3], [2.5, 1.5])}
    (ax,) = plots.learning_curve([0, 1, 2, 3], losses).axes
    assert line(ax, "dev").get_xdata().tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"losses\['dev'\] and step"):
        plots.learning_curve([0, 1], {"dev": ([1, 3], [2.5])})


def test_error_against_n_is_logarithmic_and_names_each_line(rng):
    n = np.array([100, 10, 1000])
    repeats = rng.uniform(1, 2, size=(5, 3))
    figure = plots.error_against_n(
        n, {"one": [2.0, 3.0, 1.0], "two": repeats, "three": [2.0, 3.0, 1.0]}, exponent=-0.8
    )
    (ax,) = figure.axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    np.testing.assert_array_equal(line(ax, "one").get_xydata(), [[10, 3], [100, 2], [1000, 1]])
    middle = np.median(repeats, axis=0)[[1, 0, 2]]
    np.testing.assert_array_equal(line(ax, "two").get_ydata(), middle)
    assert tick_texts(ax.xaxis) == ["10", "100", "1000"]
    names = [text for text in ax.texts if text.get_text() in ("one", "two", "three")]
    assert len(names) == 3
    figure.draw_without_rendering()
    assert_no_overlap(ax.texts)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.curve_fit([1], [1, 2], grid=[0], fits={}), "y and x must be equally long"),
        (lambda: plots.curve_fit([1], [1], grid=[0], fits={"a": [1, 2]}), r"fits\['a'\] and grid"),
        (lambda: plots.curve_fit([[1]], [1], grid=[0], fits={}), "x must be one-dimensional"),
        (lambda: plots.learning_curve([0], {"train": [1, 2]}), r"losses\['train'\] and step"),
        (lambda: plots.error_against_n([0], {"a": [1]}), r"n must be positive.*Got \[0"),
        (lambda: plots.error_against_n([1], {"a": [1, 2]}), r"errors\['a'\] must be \[1\]"),
    ],
)
def test_curves_refuse(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


# Settings and files


def test_drawing_and_saving_leave_matplotlib_as_it_was(rng, tmp_path):
    before = dict(mpl.rcParams)
    plots.save(plots.attention_heatmap(rng.uniform(size=(2, 2))), tmp_path / "a.png")
    plots.save(plots.learning_curve([0, 1], {"loss": [1, 2]}), tmp_path / "b.png")
    assert dict(mpl.rcParams) == before


def test_saved_pictures_are_small_and_the_same_each_time(rng, tmp_path):
    weights = rng.dirichlet(np.ones(50), 50)
    for name in ("a.png", "b.png"):
        plots.save(plots.attention_heatmaps([weights, weights]), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").stat().st_size < 100_000
