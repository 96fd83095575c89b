"""Dates: what babel writes, the split by day, languages, dates as ids."""

import datetime
import unicodedata

import numpy as np
import pytest
from babel import Locale
from babel.dates import format_date, parse_date

from attn_jax import text
from experiments.data import dates
from experiments.data.dates import FORMATS, LANGUAGES, DateOptions, Written
from experiments.harness.errors import UserError

DAYS = [datetime.date(1950, 1, 1), datetime.date(2004, 2, 29), datetime.date(2049, 12, 31)]


@pytest.mark.parametrize("part", dates.PARTS)
def test_dates_are_those_that_babel_writes(part):
    options = DateOptions(("de", "th", "ar"), examples=3, test_examples=2)
    written = dates.written(part, options)
    count = {"training": 3, "dev": dates.DEV_EXAMPLES, "test": 2}[part]
    cells = [(each.language, each.format) for each in written]
    assert cells == [(a, b) for a in options.languages for b in FORMATS for _ in range(count)]
    for each in written:
        day = datetime.date.fromisoformat(each.iso)
        assert each.text == format_date(day, each.format, locale=each.language)
        assert 1950 <= day.year <= 2049
    assert len({each.iso for each in written}) > count  # other days in each format
    assert written == dates.written(part, options)


def test_babel_reads_what_it_wrote():
    """An oracle of its own, for formats of numbers alone; it guesses the century."""
    for each in dates.written("test", DateOptions(("de", "en", "fr", "sv", "ja"))):
        if each.format == "short":
            read = parse_date(each.text, locale=each.language)
            day = datetime.date.fromisoformat(each.iso)
            assert (read.day, read.month, read.year % 100) == (day.day, day.month, day.year % 100)


def test_days_are_split_once_and_for_all():
    training, dev, test = dates.split()
    every = np.concatenate([training, dev, test])
    first, last = datetime.date(1950, 1, 1), datetime.date(2049, 12, 31)
    np.testing.assert_array_equal(
        np.sort(every), np.arange(first.toordinal(), last.toordinal() + 1)
    )
    assert len(dev) == len(test) == len(every) // 10


def test_held_out_days_are_unseen_in_every_language():
    options = DateOptions(("de", "en", "ja"), examples=2000, test_examples=500)
    seen, dev, test = ({each.iso for each in dates.written(p, options)} for p in dates.PARTS)
    assert not seen & dev
    assert not seen & test
    assert not dev & test
    assert len(seen) > 15000


def test_no_day_comes_twice_where_there_are_others():
    days = np.arange(730_000, 730_011)
    once = dates.drawn(days, ["de"], 11, seed=0)
    assert len(set(once)) == len(once)
    assert len(dates.drawn(days, ["de"], 12, seed=0)) == 4 * 12


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_and_its_language_tell_the_day(language):
    """Whatever the format: no two days of a century look the same."""
    start = datetime.date(2023, 1, 1)
    days = {start + datetime.timedelta(i) for i in range(365)}
    days |= {datetime.date(year, 6, 15) for year in range(1950, 2050)}
    meaning: dict[str, str] = {}
    for form in FORMATS:
        for day in days:
            each = dates.write(day, language, form)
            assert meaning.setdefault(each.text, each.iso) == each.iso


def test_default_languages():
    assert len(set(LANGUAGES)) == len(LANGUAGES) >= 20
    scripts = {
        unicodedata.name(letter).split()[0]
        for language in LANGUAGES
        for letter in dates.write(DAYS[1], language, "full").text
        if letter.isalpha()
    }
    assert len(scripts) >= 12


def test_languages_of_the_option():
    assert dates.chosen(("de", "en", "de")) == ("de", "en")
    every = dates.chosen(("all",))
    assert len(every) > 300
    assert set(LANGUAGES) <= set(every)
    assert not any("_" in code for code in every)
    assert dates.name_of("zh") == Locale("zh").english_name


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (("dee",), "unknown language 'dee'"),
        (("de", "all"), "unknown language 'all'"),
        (("de_AT",), "unknown language 'de_AT'"),
        ((), "--languages needs a language"),
    ],
)
def test_unknown_languages(languages, message):
    with pytest.raises(UserError, match=message):
        dates.chosen(languages)


def test_dates_as_ids():
    written = [dates.write(day, language, "long") for day in DAYS for language in ("de", "ar")]
    source, target = dates.vocabularies(written, ("de", "ar"))
    pairs = dates.pairs(written, source, target)
    for each, ids, truth in zip(written, *pairs, strict=True):
        assert ids[0] == source.special(f"<{each.language}>")
        assert source.decode(ids) == unicodedata.normalize("NFC", each.text)
        assert target.decode(truth) == each.iso
    assert len(target) <= 4 + 11  # ten digits and a hyphen


def test_an_empty_text_and_characters_that_are_new():
    source, _ = dates.vocabularies([Written("1. März", "de", "long", "2024-03-01")], ("de",))
    empty, ids, combined = dates.sources([("", "de"), ("3.Z", "de"), ("Ma\u0308rz", "de")], source)
    assert empty == []
    assert ids == [source.special("<de>"), text.UNKNOWN, *source.encode("."), text.UNKNOWN]
    assert len(combined) == 1 + len("März")
    assert dates.unseen("3.Z3 ä", source) == "3Z"
    assert dates.unseen("Ma\u0308rz", source) == ""
