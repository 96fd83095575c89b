import dataclasses
import gzip
import itertools
import re
import unicodedata
from datetime import datetime, timedelta
from fractions import Fraction

import numpy as np
import pytest

from experiments.data import delimited
from experiments.data.curves import (
    DATA_SETS,
    CurveOptions,
    load,
    textbook,
    textbook_test,
    textbook_truth,
)
from experiments.harness.errors import UserError


@pytest.fixture
def csv(tmp_path):
    """Write a file and return the options that read columns x and y of it."""

    def write(content, *, name="points.csv", x=("x",), y=("y",)):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return CurveOptions(csv=path, x=x, y=y)

    return write


# The textbook's curve


def test_textbook_is_the_book_s_data():
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0, 5, 11))
    y = 2 * np.sin(x) + x**0.8 + rng.normal(0, 0.5, 11)
    curve = textbook(11, seed=3)
    np.testing.assert_array_equal(curve.x, x[:, None])
    np.testing.assert_array_equal(curve.y, y[:, None])
    assert curve.x.dtype == curve.y.dtype == np.float64
    np.testing.assert_array_equal(textbook(11, seed=3).y, curve.y)
    assert not np.array_equal(textbook(11, seed=4).y, curve.y)


def test_textbook_test_is_noiseless():
    curve = textbook_test()
    np.testing.assert_array_equal(curve.x[:, 0], np.arange(0, 5, 0.1))
    np.testing.assert_array_equal(curve.y, textbook_truth(curve.x))


def test_textbook_is_the_default():
    np.testing.assert_array_equal(load(CurveOptions(), seed=7).y, textbook(50, 7).y)
    assert len(load(CurveOptions(n=13)).x) == 13


def test_textbook_refuses_one_point():
    with pytest.raises(UserError, match=r"--n must be at least 2\. Got 1"):
        CurveOptions(n=1)


# Named data sets


@pytest.mark.parametrize(
    ("name", "rows", "outputs"),
    [
        ("engel", 235, 1),
        ("nile", 100, 1),
        ("sunspots", 309, 1),
        ("co2", 2225, 1),
        ("elnino", 61, 12),
        ("diabetes", 442, 1),
    ],
)
def test_named_data(name, rows, outputs):
    curve = load(CurveOptions(data=name))
    assert curve.x.shape == (rows, 1)
    assert curve.y.shape == (rows, outputs)
    assert curve.x.dtype == curve.y.dtype == np.float64
    assert np.isfinite(curve.x).all()
    assert np.isfinite(curve.y).all()
    assert len(curve.y_names) == outputs
    assert curve.source


def test_every_named_set_is_in_the_help():
    import inspect

    from experiments.data import curves

    source = inspect.getsource(curves.CurveOptions)
    assert all(name in source for name in DATA_SETS)


def test_co2_says_what_was_missing_and_has_decimal_years():
    curve = load(CurveOptions(data="co2"))
    assert curve.notes == ("59 of 2284 rows dropped: missing values (co2: 59)",)
    assert curve.x[0, 0] == pytest.approx(1958 + 87 / 365, abs=1e-12)  # 29 March 1958


def test_columns_of_a_named_set_can_be_chosen():
    curve = load(CurveOptions(data="diabetes", x=("bmi", "s5")))
    assert (curve.x_names, curve.y_names) == (("bmi", "s5"), ("target",))
    assert curve.x.shape == (442, 2)
    np.testing.assert_array_equal(curve.x[0], [32.1, 4.8598])
    assert load(CurveOptions(data="elnino", y=("jul",))).y.shape == (61, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (CurveOptions(data="nil"), "unknown data set 'nil'. Did you mean 'nile'. Known: textbook,"),
        (CurveOptions(data="Nile"), "Did you mean 'nile'"),
        (CurveOptions(data="diabetes", x=("bmj",)), "unknown column 'bmj'. Did you mean 'bmi'"),
        (CurveOptions(data="diabetes", x=("target",)), "can be chosen once .* target twice"),
        (CurveOptions(x=("x",)), "--x and --y need --csv FILE"),
        (CurveOptions(data="nile", n=5), "--n is for the textbook curve only"),
    ],
)
def test_named_data_refuses(options, message):
    with pytest.raises(UserError, match=message):
        load(options)


# The person's own file


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("x,y,z\n1,2.5,a\n-3e2,4,b\n", "plain.csv"),
        ("x,y,z\r\n1,2.5,a\r\n-3e2,4,b\r\n", "crlf.csv"),
        ("x,y,z\r1,2.5,a\r-3e2,4,b\r", "cr.csv"),
        ("\ufeffx,y\n1,2.5\n-3e2,4\n", "bom.csv"),
        ('"x","y"\n"1","2.5"\n"-3e2","4"\n', "quoted.csv"),
        ("x\ty\n1\t2.5\n-3e2\t4\n", "tabs.tsv"),
        ("x\ty\n1\t2.5\n-3e2\t4\n", "tabs.txt"),
        ("x;y\n1;2.5\n-3e2;4\n", "semicolon.csv"),
        ("x|y\n1|2.5\n-3e2|4\n", "bar.csv"),
        ("x;y;a, b\n1;2.5;q\n-3e2;4;r, s, t\n", "commas in text.csv"),
        (" x , y\n 1 , 2.5 \n\n -300 ,4", "blanks.csv"),
        ("y,z,x\n2.5,,1\n4,NA,-300\n", "order.csv"),
        ("\ufeff\ufeffx,y\n1,2.5\n\ufeff-3e2,4\n", "marks.csv"),
        ('x, "y"\n1, "2.5"\n "-300", 4\n', "blank and quote.csv"),
        ("sep=;\nx;y\n1;2.5\n-3e2;4\n", "excel.csv"),
        ('"sep=\t"\r\nx\ty\r\n1\t2.5\r\n-3e2\t4\r\n', "excel tabs.csv"),
        ("SEP=,\rx,y\r1,2.5\r-3e2,4", "excel cr.csv"),
        (gzip.compress(b"x,y\n1,2.5\n-3e2,4\n", mtime=0), "points.csv.gz"),
        (gzip.compress(b"x\ty\n1\t2.5\n-3e2\t4\n", mtime=0), "points.TSV.gz"),
        ("x,y,z\n1,2.5,%s\n-3e2,4,b\n" % ("long " * 40_000), "long.csv"),
        ("x;y;a, b;c, d\n1;2.5;1,5;2,5\n-300;4;2,0;7\n", "header commas.csv"),
        ('naïve,x,y\n"two\nlines, \'and\' ""quotes""",1,2.5\n,-300,4\n', "text.csv"),
    ],
)
def test_file_in_many_forms(csv, content, name):
    curve = load(csv(content, name=name))
    np.testing.assert_array_equal(curve.x, [[1], [-300]])
    np.testing.assert_array_equal(curve.y, [[2.5], [4]])
    assert curve.notes == ()
    assert curve.name == name.rpartition(".")[0]


def test_file_numbers_keep_every_bit(csv):
    values = np.random.default_rng(0).normal(size=(50, 2)) * 10.0 ** np.arange(50)[:, None]
    content = "x,y\n" + "\n".join(f"{x!r},{y!r}" for x, y in values.tolist())
    curve = load(csv(content))
    np.testing.assert_array_equal(np.hstack([curve.x, curve.y]), values)


def test_file_several_columns(csv):
    curve = load(csv("a,b,c,d\n1,2,3,4\n5,6,7,9\n", x=("c", "a"), y=("d", "b")))
    np.testing.assert_array_equal(curve.x, [[3, 1], [7, 5]])
    np.testing.assert_array_equal(curve.y, [[4, 2], [9, 6]])


def test_file_missing_values_are_dropped_and_counted(csv):
    curve = load(csv("x,y,z\n1,2,\n,3,1\n4,NA,1\n5,nan,1\nnull,,1\n6,7,1\n"))
    np.testing.assert_array_equal(curve.x, [[1], [6]])
    assert curve.notes == ("4 of 6 rows dropped: missing values (x: 2, y: 3)",)


def test_file_repeated_inputs_are_kept_and_said(csv):
    curve = load(csv("x,y\n1,2\n1,3\n2,4\n"))
    assert len(curve.x) == 3
    assert curve.notes == ("1 of 3 rows repeat the inputs of another row (kept)",)


def test_file_constant_output_is_fine(csv):
    np.testing.assert_array_equal(load(csv("x,y\n1,2\n3,2\n")).y, [[2], [2]])


def test_file_constant_input_among_others_is_dropped(csv):
    curve = load(csv("x,k,y\n1,5,2\n3,5,2\n", x=("x", "k")))
    assert curve.x_names == ("x",)
    assert curve.x.shape == (2, 1)
    assert curve.notes == ("input k dropped: constant",)


def test_file_iso_dates_become_decimal_years(csv):
    curve = load(
        csv("x,y\n2023-01-01,1\n2023-07-02T12:00,2\n,3\n2024-07-02 00:00:00,4\n2025-01,5\n")
    )
    np.testing.assert_array_equal(curve.x[:, 0], [2023, 2023.5, 2024.5, 2025])
    assert curve.notes[0] == "column 'x': ISO dates read as decimal years"


def test_file_dates_of_several_time_zones_are_read_in_one(csv):
    zoned = ["2023-07-02T12:00Z", "2023-07-02 14:30+02:30", "2022-12-31T22:00-0200"]
    curve = load(csv("x,y\n" + "\n".join(f"{each},{i}" for i, each in enumerate(zoned))))
    np.testing.assert_array_equal(curve.x[:, 0], [2023.5, 2023.5, 2023])


@pytest.mark.parametrize("plain", ["2023-07-02T12:00", "2023-07-02", "2023-07"])
@pytest.mark.parametrize("zoned", ["2023-07-02T12:00Z", "2023-07-02T12:00:00.5+02:00"])
def test_file_dates_with_and_without_a_time_zone_are_refused(csv, plain, zoned):
    for first, second in ((plain, zoned), (zoned, plain)):
        lines = {first: 2, second: 4}
        told = rf"column 'x' must give all dates a time zone, or none. Got '{re.escape(zoned)}' on "
        told += rf"line {lines[zoned]} of .*, '{plain}' on line {lines[plain]}"
        with pytest.raises(UserError, match=told):
            load(csv(f"x,y\n{first},1\n,3\n{second},2\n"))


def test_file_seconds_of_dates_are_exact(csv):
    """A nanosecond above or below the middle of two years of float64 decides which is nearest."""
    middle = Fraction(2**32 + 1, 2**43) * 365 * 86_400
    cells = []
    for shift in (-1, 1):
        seconds, nanoseconds = divmod(int(middle * 10**9) + shift, 10**9)
        when = datetime(2023, 1, 1) + timedelta(seconds=seconds)
        cells.append(f"{when.isoformat()}.{nanoseconds:09d}")
    curve = load(csv(f"x,y\n{cells[0]},1\n{cells[1]},2\n"))
    np.testing.assert_array_equal(curve.x[:, 0], 2023 + np.array([2**31, 2**31 + 1]) / 2**42)


def test_file_decimal_commas(csv):
    curve = load(csv("x;y\n1,5;1,234\n2;0,5\n"))
    np.testing.assert_array_equal(curve.x, [[1.5], [2]])
    np.testing.assert_array_equal(curve.y, [[1.234], [0.5]])
    assert curve.notes[0] == "column 'x': decimal commas read as decimal points"


@pytest.mark.parametrize("header", ["x, m;y, m", '"x, m";"y, m"'])
def test_file_commas_in_names_part_nothing(csv, header):
    curve = load(csv(f"{header}\n1,5;10,5\n2,5;20,5\n", x=("x, m",), y=("y, m",)))
    np.testing.assert_array_equal(np.hstack([curve.x, curve.y]), [[1.5, 10.5], [2.5, 20.5]])


@pytest.mark.parametrize("forms", [("NFD", "NFC"), ("NFC", "NFD")])
def test_file_names_in_either_unicode_form(csv, forms):
    there, asked = (unicodedata.normalize(form, "Größe") for form in forms)
    curve = load(csv(f"{there},y\n1,2\n3,4\n", x=(asked,)))
    assert curve.x_names == (unicodedata.normalize("NFC", "Größe"),)
    with pytest.raises(UserError, match="can be chosen once"):
        load(csv(f"{there},y\n1,2\n3,4\n", x=(asked, there)))


def test_file_lines_are_counted_from_excel_s_line(csv):
    with pytest.raises(UserError, match="'four' on line 4"):
        load(csv("sep=;\nx;y\n1;2\n3;four\n"))


# Decimal signs and thousands


@pytest.mark.parametrize(
    ("sign", "quote"), [(";", ""), ("\t", ""), (";", '"'), ("|", '"'), (",", '"')]
)
@pytest.mark.parametrize("shown", ["1,5", "1.234,5", "-0,25e3"])
def test_file_dots_beside_decimal_commas_are_never_decimal_points(csv, sign, quote, shown):
    """The cell that shows decimal commas is in a column of its own."""
    rows = [["x", "y", "z"], ["1", "1.234", shown], ["2", "2.500", "n. a."], ["3", "12.000", "0"]]
    text = "\n".join(sign.join(f"{quote}{cell}{quote}" for cell in row) for row in rows)
    with pytest.raises(UserError, match=r"'1.234' on line 2 .*--thousands \..*--decimal \."):
        load(csv(text))
    for form, values in (("thousands", [1234, 2500, 12000]), ("decimal", [1.234, 2.5, 12])):
        curve = load(with_form(csv(text), **{form: "."}))
        np.testing.assert_array_equal(curve.y[:, 0], values)


def with_form(options, **form):
    return dataclasses.replace(options, form=delimited.Form(**form))


def test_file_dots_that_show_that_they_are_decimal_stay(csv):
    curve = load(csv("x;y;z\n1,5;1.234;a\n2,5;2.5;1,2\n"))
    np.testing.assert_array_equal(curve.y[:, 0], [1.234, 2.5])


def test_file_dots_that_could_part_thousands_are_said(csv):
    curve = load(csv("x;y\n1;1.234\n2;2.500\n"))
    np.testing.assert_array_equal(curve.y[:, 0], [1.234, 2.5])
    assert curve.notes == (
        "column 'y': dots read as decimal points; do they separate thousands? --thousands .",
    )
    assert load(csv("x,y\n1,1.234\n2,2.500\n")).notes == ()


@pytest.mark.parametrize(
    ("cells", "form", "values"),
    [
        (("1.234,5", "-12", ",5"), {"decimal": ",", "thousands": "."}, [1234.5, -12, 0.5]),
        (("1,234.5", "1,234,567", "1e3"), {"thousands": ","}, [1234.5, 1234567, 1000]),
        (("1\u202f234,5", "12 345", "7,0"), {"decimal": ",", "thousands": "space"}, "French"),
        (("1'234.5", "12’345", "7"), {"thousands": "'"}, [1234.5, 12345, 7]),
        (("1,234", "2,5", "3"), {"decimal": ","}, [1.234, 2.5, 3]),
    ],
)
def test_file_signs_are_those_that_are_named(csv, cells, form, values):
    values = [1234.5, 12345, 7] if values == "French" else values
    text = "x;y\n" + "\n".join(f"{i};{cell}" for i, cell in enumerate(cells))
    curve = load(with_form(csv(text), **form))
    np.testing.assert_array_equal(curve.y[:, 0], values)
    assert curve.notes == ()


@pytest.mark.parametrize(
    ("cell", "form"),
    [
        ("1.234", {"decimal": ","}),
        ("1,5", {"decimal": "."}),
        ("1.23", {"thousands": "."}),
        ("12.34.567", {"thousands": "."}),
        ("1234.567", {"thousands": "."}),
        ("1,234,5", {"thousands": ","}),
        ("1.234.567", {}),
        ("1 234", {}),
        (".", {"thousands": ","}),
        ("sNaN", {}),
        ("1e99999999999999999999", {}),
    ],
)
def test_file_other_signs_are_refused(csv, cell, form):
    with pytest.raises(UserError, match=f"column 'y' holds '{re.escape(cell)}' on line 3"):
        load(with_form(csv(f"x;y\n1;2\n3;{cell}\n"), **form))


@pytest.mark.parametrize(
    ("content", "form"),
    [
        ("x y\n1 2.5\n-300 4\n", {"delimiter": "space"}),
        ("x:y\n1:2.5\n-300:4\n", {"delimiter": ":"}),
        ("x\ty\n1\t2.5\n-300\t4\n", {"delimiter": r"\t"}),
        ("x;y\n1;2.5\n-300;4\n".encode("utf-16"), {"encoding": "utf-16"}),
        ("é,x,y\n,1,2.5\n,-300,4\n".encode("latin1"), {"encoding": "latin1"}),
    ],
)
def test_file_read_as_told(csv, content, form):
    curve = load(with_form(csv(content), **form))
    np.testing.assert_array_equal(np.hstack([curve.x, curve.y]), [[1, 2.5], [-300, 4]])


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"delimiter": "ab"}, "--delimiter must be one sign. Got 'ab'"),
        ({"delimiter": "5"}, "--delimiter must be one sign. Got '5'"),
        ({"thousands": ""}, "--thousands must be one sign. Got ''"),
        ({"thousands": ".", "decimal": "."}, "--thousands must not be --decimal"),
        ({"encoding": "utf9"}, "encoding must be one of text that Python knows. Got 'utf9'"),
    ],
)
def test_file_forms_that_cannot_be_are_refused(csv, form, message):
    with pytest.raises(UserError, match=message):
        load(with_form(csv("x,y\n1,2\n3,4\n"), **form))


def test_a_form_is_of_a_file():
    with pytest.raises(UserError, match=r"--delimiter, .* are for --csv FILE"):
        load(CurveOptions(data="nile", form=delimited.Form(decimal=",")))


# What float64 loses


@pytest.mark.parametrize(
    ("cells", "notes"),
    [
        (("9007199254740992", "9007199254740993"), ["1 integers beyond", "2 different values"]),
        (("9007199254740993", "1"), ["1 integers beyond 2^53 rounded to float64's nearest"]),
        (("9007199254740992", "1e30", "18014398509481984"), []),
        (("0.1", "0.1000000000000000055"), ["2 different values become 1 in float64"]),
        (("0.1", "0.10", "1e-1"), []),
        (("0", "1e-400"), ["1 numbers too small for float64, read as 0", "2 different values"]),
        (("9" * 40, f"{'9' * 39}.5"), ["1 integers beyond"]),
        (("2024-01-01T00:00:00.000001", "2024-01-01T00:00:00.000002"), ["ISO", "2 different"]),
        (("2024-01-01T00:00:00.0000001", "2024-01-01T00:00:00.0000002"), ["ISO", "2 different"]),
    ],
)
def test_file_what_float64_loses_is_said(csv, cells, notes):
    curve = load(csv("x,y\n" + "\n".join(f"{i},{cell}" for i, cell in enumerate(cells))))
    assert len(curve.notes) == len(notes)
    for note, start in zip(curve.notes, notes, strict=True):
        assert note.startswith(f"column 'y': {start}")


def test_file_inputs_that_float64_makes_equal_are_said(csv):
    content = "x,y\n9007199254740992,1\n9007199254740993,2\n"
    with pytest.raises(UserError, match=r"is constant .*2 different values become 1 in float64"):
        load(csv(content))
    assert "repeat" in load(csv(content + "3,3\n")).notes[-1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty: it needs a header line"),
        ("\n \n", "is empty"),
        ("x,y\n", r"has a header \(x, y\) but no rows"),
        ("x,y\n1,2\n", "at least 2 complete rows. Got 1."),
        ("x,y\n1,\n,2\n", r"at least 2 complete rows. Got 0 \(2 of 2 rows dropped"),
        ("x,y\n1,2\n3,\n", r"at least 2 complete rows. Got 1 \(1 of 2 rows dropped"),
        ("x,y\n1,2\n\n3,four\n5,six\n", "column 'y' holds 'four' on line 4 of .*points.csv"),
        ('x,z,y\n1,"a\nb",2\n3,c,?\n', r"column 'y' holds '\?' on line 4"),
        ("x,y\n1,2\n3,1_000\n", "'1_000' on line 3"),
        ('x,y\n1,"1,234"\n3,2\n', "'1,234' on line 2"),
        ("x;y\n1;1,234\n3;2,345\n", "'1,234' on line 2"),
        ("x,y\n2023-01-01,1\n2023-13-01,2\n", "'2023-13-01' on line 3 .* ISO dates"),
        ("x,y\n2023-01-01,1\n7,2\n", "'7' on line 3 .* ISO dates"),
        ("x,y\n01/02/2023,1\n01/03/2023,2\n", "'01/02/2023' on line 2"),
        ("x,y\n1,2\n3,inf\n", "column 'y' must be finite. Got 'inf' on line 3"),
        ("x,y\n1,2\n3,1e999\n", "column 'y' must be finite. Got '1e999' on line 3"),
        ("x,y\n1,2\n1,3\n", "--x must vary from row to row. x of .* is constant"),
        ("x,why\n1,2\n1,3\n", "unknown column 'y'. .*Known: x, why"),
        ("1,2\n3,4\n", "first line of .* looks like data"),
        ("x,y,y\n1,2,3\n4,5,6\n", "column 'y' is 2 times in"),
        ("x,y\n1,2,3\n4,5\n", "3 cells on line 2, but 2 in its header"),
        ("x,y\n1,2\n4\n", "1 cells on line 3, but 2 in its header"),
        ('x,y\n1,2\n4,"5\n6,7\n', "breaks off in the record on line 3"),
        (b"x,y\n1,2\n\xe9,3\n", "is not UTF-8 .byte 0xe9 on line 3"),
        ("x,y\n1,2\n".encode("utf-16"), "is not UTF-8 .*utf-16"),
        ("x,y\n1,2\n".encode("utf-16"), "is not UTF-8 .*--encoding names another"),
        ("x,y\n1,2\n".encode("utf-16-le"), "NUL character on line 1: is it UTF-16"),
        (b"PK\x03\x04\xff\xfe", "is not UTF-8 .*a workbook or a zip archive: save it"),
        ("x y\n1 2\n3 4\n", "unknown column 'x'.*read with comma as delimiter; --delimiter"),
    ],
)
def test_file_refuses(csv, content, message):
    with pytest.raises(UserError, match=message):
        load(csv(content))


@pytest.mark.parametrize("ends", list(itertools.product(["\n", "\r", "\r\n"], repeat=3)))
def test_file_lines_end_with_cr_or_lf_or_both(csv, ends):
    """In any mixture, within a cell, and where lines are blank."""
    one, two, three = ends
    start = f'x,y,z{one}1,2,"a{two}b{three}"{two}3,4,c{three} {one}5,6,{two}'
    line = 1 + len(re.findall("\r\n?|\n", start))
    with pytest.raises(UserError, match=f"'bad' on line {line} "):
        load(csv(f"{start}7,bad,{three}"))


def test_file_unused_duplicate_and_text_columns_do_no_harm(csv):
    assert len(load(csv("x,y,z,z\n1,2,a,b\n3,4,c,d\n")).x) == 2


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((), ("y",), "--csv needs --x: choose from the columns x, y."),
        (("x",), (), "--csv needs --y: choose from the columns x, y."),
        (("x",), ("x",), "can be chosen once .* x twice"),
        (("x", "x"), ("y",), "can be chosen once .* x twice"),
    ],
)
def test_file_refuses_choices(csv, x, y, message):
    with pytest.raises(UserError, match=message):
        load(csv("x,y\n1,2\n3,4\n", x=x, y=y))


def test_file_unknown_column_list_stays_short(csv):
    header = ",".join(f"c{i}" for i in range(500))
    with pytest.raises(UserError, match=r"c19, … \(500 in all\)"):
        load(csv(f"{header}\n{header}\n"))


@pytest.mark.parametrize("factor", [1e300, 1e120, 1e-120, 1e-310])
@pytest.mark.parametrize("column", ["x", "y"])
def test_file_whose_squares_are_no_numbers_is_refused(csv, column, factor):
    """All of them are finite, and so small or so large that no error and no distance is."""
    numbers = {"x": np.array([1.0, 2.0, 4.0]), "y": np.array([3.0, 1.0, 2.0])}
    numbers[column] = factor * numbers[column]
    rows = np.stack(list(numbers.values()), axis=1).tolist()
    lines = [f"{x!r},{y!r}" for x, y in rows]
    with pytest.raises(UserError, match=rf"^'{column}' of .* holds .*: rescale it, so that"):
        load(csv("\n".join(["x,y", *lines]) + "\n"))


def test_file_of_large_and_small_units_is_read(csv):
    data = load(csv("x,y\n1e45,1e-45\n2e45,3e-45\n4e45,3e-45\n"))
    assert data.x[:, 0].tolist() == [1e45, 2e45, 4e45]


def test_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"no file .*nowhere\.csv"):
        load(CurveOptions(csv=tmp_path / "nowhere.csv"))
    with pytest.raises(UserError, match="is a directory"):
        load(CurveOptions(csv=tmp_path))


def test_file_and_named_data_exclude_each_other(tmp_path):
    with pytest.raises(UserError, match="--data and --csv exclude each other"):
        load(CurveOptions(data="nile", csv=tmp_path / "points.csv"))


def test_find_delimiter_prefers_even_rows(csv):
    options = csv("x;y (kg, dry)\n1,5;2,5\n")
    assert delimited.read(options.csv, delimited.Form()).delimiter == ";"
