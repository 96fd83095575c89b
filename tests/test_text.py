"""Text: files are read exactly or refused with the line, vocabularies come back exactly."""

import codecs
import collections
import gzip
import json
import lzma
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attn_jax
from attn_jax.text import END, PAD, START, UNKNOWN, Vocabulary, read_lines, read_parallel, read_text

KINDS = ["word", "character", "bpe"]
each_kind = pytest.mark.parametrize("kind", KINDS)
TEXT = {
    "English": [
        "A man in a \"t-shirt\" isn't young; (he's 62.5 years old)!",
        "Two dogs -- one brown, one black/white -- run... [and] jump & play @ 5:30 p.m.",
        "Rock 'n' roll: $3,500, 50% off, e-mail a.b@c.de, it's the boys' ball?!",
    ],
    "German": [
        "Zwei junge, weiße Männer – „im Freien“ – in der Nähe vieler Büsche.",
        "Ein Mountainbike-Fahrer/-Läufer fährt über 3,5 km, z. B. nach »Österreich«…",
        "Geht's? Straßen- und S-Bahn: 20 °C.",
    ],
    "French": [
        "L'homme d'aujourd'hui s'assoit : qu'est-ce que c'est ?",
        "Une « grande » fille, jusqu’à l’été, porte-monnaie à 3,50 €…",
        "Deux garçons – naïfs – ont-ils mangé un œuf ?",
    ],
    "Hindi and Russian": ["दो युवा, हिन्दी में बात करते हैं।", "Вот дом; кто-то (он) идёт."],
}


# Files


def written(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        ("a\nä b".encode(), ["a", "ä b"]),
        (b"\xef\xbb\xbfa\n", ["a"]),
        (b"a\r\n\r\nb\r\n", ["a", "", "b"]),
        (b"a\r\nb\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\x0cb\x0b\x1c\x1d\x1ec\n", ["a\x0cb\x0b\x1c\x1d\x1ec"]),
        ("a\u2028b\u2029c\u0085d\n".encode(), ["a\u2028b\u2029c\u0085d"]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        (b"\n", [""]),
        (b"  a\t \n", ["  a\t "]),
        ("a\ufeffb\n".encode(), ["a\ufeffb"]),
        ("\ufeff\ufeffa\n\ufeffb\r\n\ufeff\n".encode(), ["a", "b", ""]),  # joined files
        (b"a\rb\r\rc", ["a", "b", "", "c"]),
        (
            "a\r\ufeffb\n\ufeffc\r\r\n".encode(),
            ["a\r\ufeffb", "c\r"],
        ),  # no carriage return ends a line
        ("\ufeffa\r\ufeffb\u2028\x0c\u0085c\r".encode(), ["a", "b\u2028\x0c\u0085c"]),
        (b"\r", [""]),
        (gzip.compress("ä\r\nb\n".encode(), mtime=0), ["ä", "b"]),
    ],
)
def test_only_line_feeds_end_a_line(data, lines, tmp_path):
    assert read_lines(written(tmp_path / "text", data)) == lines


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "text is empty"),
        (b"\xef\xbb\xbf", "text is empty"),
        (b"a\nb\nc\xe4d\n", r"text is not UTF-8 \(byte 0xe4 on line 3\)"),
        (b"a\rb\r\nc\xe4d\r", r"text is not UTF-8 \(byte 0xe4 on line 2\): iconv -f latin1"),
        (b"a\rb\rc\xe4d\r", r"text is not UTF-8 \(byte 0xe4 on line 3\): iconv -f latin1"),
        ("a\nb\n".encode("utf-16"), r"text is not UTF-8 \(byte 0xff on line 1\)"),
        (codecs.BOM_UTF16_LE + "a\n".encode("utf-16-le"), "iconv -f utf-16 -t utf-8"),
        (codecs.BOM_UTF16_BE + "a\n".encode("utf-16-be"), "iconv -f utf-16 -t utf-8"),
        ("a\nb\n".encode("utf-32"), "iconv -f utf-32 -t utf-8"),
        ("a\nb\n".encode("utf-16-le"), "NUL character on line 1.* iconv -f utf-16le"),
        ("a\nb\n".encode("utf-16-be"), "NUL character on line 1.* iconv -f utf-16be"),
        (b"PK\x03\x04\xff\xfe", "text is not UTF-8 .*a workbook or a zip archive"),
        (lzma.compress(b"a\n"), "text is not UTF-8 .*unxz"),
        (b"a\nb\0c\n", "text holds a NUL character on line 2"),
        (b"a\rb\nc\rd\0\n", "text holds a NUL character on line 2"),
        (b"a\r\xc3\xa4\rb\0\n"[:-1], "text holds a NUL character on line 3"),
        (gzip.compress(b"a\n" * 999, mtime=0)[:-9], "text is damaged"),
        (b"\x1f\x8bnothing", "text is damaged"),
    ],
)
def test_files_that_are_no_text_are_refused_with_the_line(data, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        read_lines(written(tmp_path / "text", data))


def test_a_text_in_another_encoding(tmp_path):
    path = written(tmp_path / "text", "ä\r\nb".encode("utf-16"))
    assert read_text(path, "utf-16") == "ä\r\nb"
    assert read_text(written(path, b"\xe4\r"), "latin1") == "ä\r"
    with pytest.raises(ValueError, match=r"text is not ASCII \(byte 0xe4 on line 1\)"):
        read_text(path, "ascii")
    with pytest.raises(ValueError, match="encoding must be one of text that Python knows"):
        read_text(path, "utf9")
    with pytest.raises(ValueError, match=r"text is not UTF-16 \(byte 0x00 on line 2\)"):
        read_text(written(path, "\u010a\n\ud800a".encode("utf-16", "surrogatepass")), "utf-16")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-7", "latin1"])
def test_a_nul_in_another_encoding(encoding, tmp_path):
    """Only where characters are bytes may the file be UTF-16; a zero byte is no NUL elsewhere."""
    path = written(tmp_path / "text", "\u00e4\n\u00e9\nb\0".encode(encoding))
    with pytest.raises(ValueError, match="text holds a NUL character on line 3") as raised:
        read_text(path, encoding)
    assert ("UTF-16" in str(raised.value)) == (encoding == "latin1")


def test_missing_files_and_directories_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*missing\.de"):
        read_lines(tmp_path / "missing.de")
    with pytest.raises(ValueError, match="is a directory"):
        read_lines(str(tmp_path))


def test_parallel_files_keep_every_row(tmp_path):
    de = written(tmp_path / "a.de", b"eins\n\ndrei\n\n")
    en = written(tmp_path / "a.en", b"one\r\ntwo\r\n\r\n\r\n")
    assert read_parallel(de, en) == (["eins", "", "drei", ""], ["one", "two", "", ""])


@pytest.mark.parametrize("swapped", [False, True])
def test_parallel_files_of_unequal_length_are_refused_with_the_line(swapped, tmp_path):
    paths = [written(tmp_path / "a.de", b"1\n2\n3\n\n"), written(tmp_path / "a.en", b"1\n2")]
    with pytest.raises(ValueError, match=r"line 3 of \S*a\.de has none"):
        read_parallel(*paths[::-1] if swapped else paths)


# There and back


def normal(kind, line):
    """What a round trip may change: the Unicode form, marks of our own, for words white space."""
    line = unicodedata.normalize("NFC", line.replace("▁", " ") if kind == "bpe" else line)
    return " ".join(re.split(r"[\s‿]+", line)).strip() if kind == "word" else line


@each_kind
@pytest.mark.parametrize("language", TEXT)
def test_ordinary_text_comes_back_exactly(kind, language):
    vocabulary = Vocabulary.train(TEXT[language], kind=kind, size=80 if kind == "bpe" else None)
    for line in TEXT[language]:
        ids = vocabulary.encode(line, end=True)
        assert vocabulary.decode(ids) == line
        assert min(ids) >= END


@each_kind
@given(
    line=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x1c\x1d\x1e\x1f"))
)
def test_any_text_comes_back_exactly(kind, line):
    vocabulary = Vocabulary.train([line, "ab, c"], kind=kind)
    assert vocabulary.decode(vocabulary.encode(line)) == normal(kind, line)


def test_words_are_split_from_signs():
    vocabulary = Vocabulary.train(TEXT["English"])
    for language in ("English", "German", "French"):
        for line in TEXT[language]:
            assert vocabulary.tokens(line) == re.findall(r"\w+|[^\w\s]", line)


def test_a_word_is_the_same_beside_a_sign():
    vocabulary = Vocabulary.train(["shirt (shirt) t-shirt"])
    assert vocabulary.encode("shirt")[0] == vocabulary.encode("t-shirt")[2]


def test_pieces_are_the_merges_in_their_order():
    lines = ["low low low low low", "lower lower", "newest newest newest", "widest, wide"] * 3
    vocabulary = Vocabulary.train(lines, kind="bpe", size=40)
    assert vocabulary.merges[0] == ("l", "o")  # 21 times, before ("▁", "l"), as often
    assert len(vocabulary.merges) > 10
    for line in ["lowest newer", "wide, low", "slow"]:
        oracle = []
        for word in re.findall(r"▁\w+|,", "▁" + line.replace(" ", "▁")):
            pieces = list(word)
            for left, right in vocabulary.merges:
                for i in reversed(range(len(pieces) - 1)):
                    if pieces[i : i + 2] == [left, right]:
                        pieces[i : i + 2] = [left + right]
            oracle += pieces
        assert vocabulary.tokens(line) == oracle


@each_kind
def test_unicode_forms_and_capitals(kind):
    line = "Été ﬁn, x², ℡ ǰ"
    vocabulary = Vocabulary.train([line], kind=kind)
    assert vocabulary.encode(unicodedata.normalize("NFD", line)) == vocabulary.encode(line)
    assert vocabulary.decode(vocabulary.encode(line)) == line
    other = Vocabulary.train([line], kind=kind, normalization="NFKC", lowercase=True)
    assert other.decode(other.encode("ÉTÉ ﬁN, X2, ℡ J\u030c")) == "été fin, x2, tel ǰ"


# What is unknown, and what is special


@pytest.mark.parametrize(
    ("kind", "decoded", "tokens"),
    [
        ("word", "ab, ⁇", ["ab", ",", "xab"]),
        ("character", "ab, ⁇ab", ["a", "b", ",", "␣", "x", "a", "b"]),
        ("bpe", "ab, ⁇ab", ["▁ab", ",", "▁", "x", "ab"]),
    ],
)
def test_unknown_text_is_unknown_by_itself(kind, decoded, tokens):
    vocabulary = Vocabulary.train(["ab, ab ,ab"] * 9, kind=kind)
    ids = vocabulary.encode("ab, xab")
    assert ids.count(UNKNOWN) == 1
    assert vocabulary.decode(ids) == decoded
    assert vocabulary.tokens("ab, xab") == tokens
    assert vocabulary.token(UNKNOWN) == "⁇"
    assert vocabulary.encode("😀") == [*vocabulary.encode("x")[:-1], UNKNOWN]


@each_kind
def test_lines_of_nothing_one_token_and_a_hundred_thousand(kind):
    vocabulary = Vocabulary.train(["ab, ab", " "], kind=kind)
    assert vocabulary.encode("") == []
    assert vocabulary.encode("", end=True) == [END]
    assert vocabulary.decode([]) == vocabulary.decode([END]) == ""
    assert vocabulary.decode(vocabulary.encode(" ")) == ("" if kind == "word" else " ")
    assert len(vocabulary.encode("a" if kind == "character" else "ab")) == 1
    long = "ab, " * 25_000 + "ab"
    assert vocabulary.decode(vocabulary.encode(long)) == long


@each_kind
def test_special_tokens_have_fixed_ids_that_no_text_reaches(kind):
    names = "<pad> <unknown> <start> <end> <de>"
    vocabulary = Vocabulary.train([names] * 9, kind=kind, extra=("<de>", "<fr>"))
    ids = [vocabulary.special(name) for name in [*names.split(), "<fr>"]]
    assert ids == [PAD, UNKNOWN, START, END, 4, 5] == list(range(6))
    assert min(vocabulary.encode(names)) > 5
    assert vocabulary.decode([START, 4, *vocabulary.encode(names), PAD]) == names
    assert vocabulary.decode([PAD, *vocabulary.encode("<de>"), END, 6, 7]) == "<de>"
    assert [vocabulary.token(i) for i in (START, END, 5)] == ["<start>", "<end>", "<fr>"]


@each_kind
def test_every_id_has_one_readable_piece(kind):
    lines = [line for language in TEXT.values() for line in language]
    vocabulary = Vocabulary.train(lines[:4], kind=kind, size=60)
    for line in [*lines, "a\tb\u00a0c\u202f! ▁ ‿"]:
        ids, tokens = vocabulary.encode(line), vocabulary.tokens(line)
        assert len(ids) == len(tokens)
        assert all(re.fullmatch(r"\S+", token) for token in tokens)
        known = [(i, token) for i, token in zip(ids, tokens, strict=True) if i != UNKNOWN]
        assert [vocabulary.token(i) for i, _ in known] == [token for _, token in known]


# What is kept


@pytest.mark.parametrize("kind", ["word", "character"])
def test_the_most_frequent_are_kept(kind):
    words = np.random.default_rng(7).integers(0, 60, 900) ** 2 // 97
    lines = [" ".join(f"w{word}" for word in part) for part in words.reshape(-1, 9)]
    counts = collections.Counter(" ".join(lines).split() if kind == "word" else "".join(lines))
    frequent = sorted(counts.values(), reverse=True)
    size, least = 7, frequent[10]
    few = Vocabulary.train(lines, kind=kind, size=4 + size)
    assert [counts[entry] for entry in few.entries] == frequent[:size]
    often = Vocabulary.train(lines, kind=kind, min_frequency=least)
    assert {*often.entries} == {entry for entry in counts if counts[entry] >= least}
    assert len(often) == 4 + len(often.entries)
    assert len(Vocabulary.train(lines, kind=kind).entries) == len(counts)


def test_pieces_of_rare_characters_are_unknown():
    lines = ["abc abc ab", "x"]
    assert UNKNOWN in Vocabulary.train(lines, kind="bpe", min_frequency=2).encode("x")
    assert UNKNOWN not in Vocabulary.train(lines, kind="bpe").encode("x")
    assert len(Vocabulary.train(lines, kind="bpe", size=6)) == 6


def test_training_gives_the_same_vocabulary_in_any_process():
    """Ties too: retraining must not disagree with the vocabulary of a checkpoint."""
    code = f"""
from attn_jax.text import Vocabulary
for kind in {KINDS}:
    print(Vocabulary.train(["fg ab cd e", "ba dc, e"], kind=kind, size=9).checksum)
    print(Vocabulary.train(["fg ab cd e", "ba dc, e"], kind=kind, size=19).checksum)
"""
    where = {"capture_output": True, "text": True, "cwd": Path(attn_jax.__file__).parent.parent}
    runs = [subprocess.run([sys.executable, "-c", code], check=True, **where) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    assert len(set(runs[0].stdout.split())) == 6


# As one JSON


@each_kind
def test_a_saved_vocabulary_is_the_same(kind, tmp_path):
    vocabulary = Vocabulary.train(
        TEXT["French"], kind=kind, size=90, lowercase=True, normalization="NFKC", extra=("<fr>",)
    )
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded == vocabulary
    assert hash(loaded) == hash(vocabulary)
    assert (loaded.checksum, len(loaded)) == (vocabulary.checksum, len(vocabulary))
    assert [path.name for path in tmp_path.iterdir()] == ["vocabulary.json"]
    for line in TEXT["French"]:
        assert loaded.encode(line) == vocabulary.encode(line)
    other = Vocabulary.train(TEXT["French"], kind=kind, size=90, lowercase=True, extra=("<fr>",))
    assert other != vocabulary
    assert other.checksum != vocabulary.checksum
    assert vocabulary.checksum in repr(vocabulary)


def altered(**entries):
    return lambda text: json.dumps(json.loads(text) | entries)


def without(name):
    return lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != name})


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text[:-9], "must be JSON"),
        (lambda text: "", "must be JSON"),
        (lambda text: "[1]", "must be of the format 'attn_jax vocabulary 1'. Got None"),
        (altered(format="attn_jax vocabulary 0"), "must be of the format"),
        (lambda text: text.replace('"ab"', '"ba"'), "must be as written, with the checksum"),
        (altered(lowercase=True), "must be as written"),
        (altered(specials=["<pad>", "<unknown>", "<s>", "<end>"]), "must be as written"),
        (altered(checksum="0"), "must be as written, with the checksum 0. Got "),
        (altered(more=1), "must be as written"),
        (without("kind"), "must be as written"),
        (without("checksum"), "must be as written, with the checksum None. Got "),
    ],
)
def test_damaged_vocabularies_are_refused(damage, told, tmp_path, without_shape_hook):
    path = tmp_path / "vocabulary.json"
    Vocabulary.train(["ab c"]).save(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=told) as error:
        Vocabulary.load(path)
    assert str(error.value).startswith(str(path))


def test_vocabularies_that_cannot_be_read_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.json", written(tmp_path / "latin", b"\xe4")):
        with pytest.raises(ValueError, match=f"{path.name} cannot be read as a vocabulary"):
            Vocabulary.load(path)


# Mistakes


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kind": "words"}, "kind must be 'word', 'character' or 'bpe'. Got 'words'"),
        ({"normalization": "NFD"}, "normalization must be 'NFC' or 'NFKC'. Got 'NFD'"),
        ({"min_frequency": 0}, "min_frequency must be at least 1. Got 0"),
        ({"min_frequency": 3}, "lines must hold text that is frequent enough. Got no token"),
        ({"size": 4}, "size must be more than the 4 special tokens. Got 4"),
        ({"size": 5, "extra": ("<de>",)}, "more than the 5 special tokens"),
        ({"extra": ("de",)}, "extra must be different names like '<de>'"),
        ({"extra": ("<de>", "<de>")}, "extra must be different names"),
        ({"extra": ("<end>",)}, "none of them of <pad>, <unknown>, <start>, <end>"),
        ({"lines": "one string"}, "lines must be lines of text, not one string. Got 'one string'"),
        ({"lines": []}, "lines must hold text"),
        ({"lines": ["", ""], "kind": "bpe"}, "lines must hold text"),
    ],
)
def test_mistakes_in_training_are_answered(options, told, without_shape_hook):
    with pytest.raises(ValueError, match=re.escape(told)):
        Vocabulary.train(**({"lines": ["ab ab c"]} | options))


def test_mistakes_in_use_are_answered(without_shape_hook):
    vocabulary = Vocabulary.train(["ab, c"])
    for ids in ([-1], [5, 7], np.array([99])):
        with pytest.raises(ValueError, match=r"ids must be below 7, .* not negative\. Got \["):
            vocabulary.decode(ids)
    for ids in ([1.0], [[5]], "ab"):
        with pytest.raises(ValueError, match="ids must be a sequence of integers"):
            vocabulary.decode(ids)
    for lines in (["ab", "\ud800"], ["ab", None]):
        with pytest.raises(ValueError, match="lines must be strings that UTF-8 can hold"):
            vocabulary.encode_batch(lines)
    with pytest.raises(ValueError, match="not one string"):
        vocabulary.encode_batch("ab")
    with pytest.raises(ValueError, match=r"name must be one of \['<pad>'"):
        vocabulary.special("<de>")


def test_batches_and_arrays_are_lines_and_lists():
    vocabulary = Vocabulary.train(["ab, c"])
    lines = ["ab", "", "c, x"]
    for end in (False, True):
        expected = [vocabulary.encode(line, end=end) for line in lines]
        assert vocabulary.encode_batch(lines, end=end) == expected
    assert vocabulary.encode_batch([]) == []
    ids = vocabulary.encode("ab, c")
    for dtype in (np.int32, np.uint8):
        assert vocabulary.decode(np.array(ids, dtype)) == "ab, c"
    assert vocabulary.decode(jnp.array(ids)) == "ab, c"
