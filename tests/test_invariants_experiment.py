import json

import jax
import pytest

from experiments import cli
from experiments.invariants import attentions, normalizers
from experiments.invariants.report import Column


def test_smoke_run(tmp_path, capsys):
    with jax.numpy_rank_promotion("allow"):  # others' code
        assert cli.main(["invariants", "--smoke", "--output-dir", str(tmp_path)]) == 0
    metrics = json.loads((tmp_path / "invariants" / "default" / "metrics.json").read_text())
    results = metrics["results"]
    ours = [each for each in results if each["library"] == "attn_jax"]
    assert {each["kind"] for each in ours} == {"normalizer", "attention"}
    assert {each["status"] for each in ours} == {"holds"}
    failed = [each for each in results if each["status"] == "fails"]
    out = capsys.readouterr().out
    assert all(len(each) <= 80 for each in out.splitlines() if "✓" in each)
    for each in failed:
        assert each["input"]
        assert f"{each['invariant']}: {each['statement']}" in out


def test_our_failure_is_the_exit_code(tmp_path, monkeypatch, capsys):
    def broken(kind):
        def double(*arrays, **mask):
            return 2 * arrays[-1]

        column = Column(kind, "attn_jax", "x", double, smoke=True)
        absent = Column("y", "no_such_peer", "y", smoke=True)
        return [column, absent]

    monkeypatch.setattr(normalizers, "COLUMNS", broken("normalizer"))
    monkeypatch.setattr(attentions, "COLUMNS", broken("attention"))
    assert cli.main(["invariants", "--smoke", "--output-dir", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "attn_jax breaks an invariant: attention, normalizer" in out
    assert "not installed: no_such_peer (y, y): pip install '.[peers]'" in out


def test_bad_options(capsys):
    assert cli.main(["invariants", "--examples", "0"]) == 2
    assert "--examples must be positive and finite. Got 0." in capsys.readouterr().err


@pytest.mark.parametrize("table", [normalizers, attentions])
def test_codes_are_short_and_distinct(table):
    codes = [each.code for each in table.COLUMNS]
    assert len(set(codes)) == len(codes)
    assert max(map(len, codes)) <= 3
