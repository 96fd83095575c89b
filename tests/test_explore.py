"""A page to explore attention on: what it stores, what it refuses, that a browser shows it."""

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from attn_jax.plots import explore

RNG = np.random.default_rng(5)
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--",
    "&amp;",
    'a"b',
    "שלום",
    "日本",
    "😀",
    " ",
    "",
    "\ud800",
]


def stored(page):
    """The data of a page, as a browser's JSON.parse reads it."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page.html, re.DOTALL)[1])


def weights_of(data, number=0):
    codes = np.frombuffer(base64.b64decode(data["maps"][number]["codes"]), f"<u{data['bits'] // 8}")
    return ((codes / (2 ** data["bits"] - 1)) ** 2 * data["largest"]).reshape(data["shape"])


@pytest.mark.parametrize(("shape", "error"), [((2, 3, 5, 7), 1e-4), ((3, 5, 7), 1e-4)])
def test_weights_are_kept_and_zeros_are_zeros(shape, error):
    weights = RNG.dirichlet(np.full(7, 0.3), shape[:-1])
    weights[..., 2] = 0
    weights[..., 3] = 1e-12
    data = stored(explore(weights, list("abcde"), list("1234567")))
    found = weights_of(data)
    assert data["shape"] == [1] * (4 - len(shape)) + list(shape)
    np.testing.assert_allclose(found, weights.reshape(found.shape), atol=error)
    np.testing.assert_array_equal(found == 0, (weights == 0).reshape(found.shape))


def test_many_weights_are_less_than_a_megabyte():
    weights = RNG.dirichlet(np.ones(64), (12, 8, 64))
    page = explore(weights, [f"token{i}" for i in range(64)])
    assert len(page.html.encode()) < 1_000_000
    np.testing.assert_allclose(weights_of(stored(page)), weights, atol=4e-3)


def test_tokens_are_text_and_nothing_else(tmp_path):
    page = explore(np.full((10, 10), 0.1), HOSTILE, title=HOSTILE[0], path=tmp_path / "a.html")
    assert page.html.count("<script") == 2
    assert "alert(1)</script>" not in page.html
    data = stored(page)
    assert (data["queries"], data["keys"], data["title"]) == (HOSTILE, HOSTILE, HOSTILE[0])
    assert (tmp_path / "a.html").read_text("utf-8") == page.html
    assert not re.search(r"https?://", page.html)  # nothing is fetched
    notebook = page._repr_html_()
    assert notebook.count("<") == notebook.count(">") == 2  # the frame's own tag, opened and closed


def test_several_maps_an_image_and_sound():
    weights = RNG.dirichlet(np.ones(8), 3)
    data = stored(explore({"softmax": weights, "sparse": np.eye(3, 8)}, "abc", range(8)))
    assert [each["name"] for each in data["maps"]] == ["softmax", "sparse"]
    np.testing.assert_allclose(weights_of(data, 1)[0, 0], np.eye(3, 8))
    image = RNG.integers(0, 255, (20, 40, 3)).astype(np.uint8)
    data = stored(explore(weights, "abc", range(8), image=image))
    assert (data["image"]["rows"], data["image"]["columns"]) == (2, 4)
    assert base64.b64decode(data["image"]["url"].split(",")[1]).startswith(b"\x89PNG")
    data = stored(explore(weights, "abc", range(8), audio=(np.zeros(800), 400)))
    assert data["audio"]["seconds"] == 2
    assert base64.b64decode(data["audio"]["url"].split(",")[1]).startswith(b"RIFF")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], "a"), "weights must be .layers, heads, q, k. or its last axes"),
        (([[np.nan]], "a"), "weights must be finite and not negative"),
        (([[-0.5]], "a"), r"weights must be finite and not negative. Got \[-0.5\]"),
        (([[np.inf]], "a"), r"weights must be finite and not negative. Got \[inf\]"),
        (({1: [[1.0]], "1": [[1.0]]}, "a"), "weights must have names that differ as text"),
        (({}, "a"), "weights must hold one array at least"),
        (({"a": [[1.0]], "b": [[0.5, 0.5]]}, "a"), "weights must have one shape"),
        (([[0.5, 0.5]], "ab"), "queries must be 1, as the weights"),
        (([[0.5, 0.5]], "a", "b"), "keys must be 2, as the weights"),
    ],
)
def test_mistakes(arguments, message, without_shape_hook):
    with pytest.raises(ValueError, match=message):
        explore(*arguments)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"image": np.zeros((4, 0, 3), np.uint8)}, "image must be .height, width, 3., uint8"),
        ({"image": np.zeros((4, 5), np.uint8)}, "image must be .height, width, 3., uint8"),
        ({"audio": ([0.0], 0)}, "audio must be finite samples .n. and a positive rate"),
        ({"audio": ([np.nan], 8000)}, "audio must be finite samples .n. and a positive rate"),
    ],
)
def test_mistakes_in_what_is_beside(what, message, without_shape_hook):
    with pytest.raises(ValueError, match=message):
        explore([[1.0]], "a", **what)


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium (apt install chromium)")
def test_a_browser_shows_it(tmp_path):
    page = tmp_path / "page.html"
    weights = RNG.dirichlet(np.full(10, 0.2), (2, 2, 10))
    weights[weights < 0.05] = 0
    tokens = [*HOSTILE[:-1], "z"]  # dumped as UTF-8, which holds no half of a pair
    explore({"a": weights, "b": weights[::-1]}, tokens, path=page)
    how = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    how += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000"]
    how += ["--window-size=900,900", f"--screenshot={tmp_path / 'page.png'}", "--dump-dom"]
    done = subprocess.run(["chromium", *how, page.as_uri()], capture_output=True, timeout=240)
    assert b"CONSOLE" not in done.stderr
    shown = done.stdout.decode()
    zeros = [int(each) for each in re.findall(r"(\d+) of 10 are 0", shown)]
    assert zeros == [int((each[0, 0, 0] == 0).sum()) for each in (weights, weights[::-1])]
    assert shown.count('role="option"') == 10
    assert "&lt;script&gt;alert(1)" in shown
