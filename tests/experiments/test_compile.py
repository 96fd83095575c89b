"""Programs for machines that are not here: each is built; what lacks its compiler is left out."""

import json

import jax
import pytest

from experiments import cli
from experiments.compile import programs, targets
from experiments.compile.child import compiled, largest
from experiments.compile.names import MEMBERS, MODULES


def run(directory, *options):
    return cli.main(["compile", "--smoke", "--output-dir", str(directory), *options])


def test_every_member_streams_the_gradients_that_the_program_says():
    """Of this machine's own compiler: two members through, all traced."""
    for name in MEMBERS:
        made = programs.member(name, "gradient", "streaming", 24, 4, "float32")
        operands, learned = jax.eval_shape(made.function, *made.arguments)
        assert [each.shape for each in operands] == [(24, 4)] * 3
        assert len(learned) == len(made.arguments[1])
    one = jax.devices()[0]
    row = compiled(programs.member("relative-bias", "second", "dense", 24, 4, "float32"), one)
    assert row["compile_seconds"] > 0 == sum(row["collectives"].values())
    assert row["largest_array"] >= 24 * 24


@pytest.mark.parametrize("name", MODULES)
def test_a_training_step_keeps_the_shapes_of_its_parameters(name):
    made = programs.training_step(name)
    state, _ = jax.eval_shape(made.function, *made.arguments)
    assert jax.tree.map(lambda each: each.shape, state) == jax.tree.map(
        lambda each: each.shape, made.arguments[0]
    )


def test_arguments_are_no_array_that_a_program_makes():
    text = "%a = f32[9,9]{1,0} parameter(0)\n %b = (f32[2,3]{1,0}, s8[7]{0}) fusion(%a), calls=%c"
    assert largest(text) == 7


def test_a_target_without_its_compiler_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(targets, "CACHE", tmp_path)
    assert run(tmp_path, "--targets", "v5e", "h100") == 0
    assert "v5e: left out, libtpu is not in" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "compile" / "default" / "metrics.json").read_text())
    assert set(metrics["skipped"]) == {"v5e", "h100"}
    assert metrics["programs"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--programs", "softmacks"], "unknown program 'softmacks'"),
        (["--directions"], "--directions needs one or several"),
        (["--targets", "v5e", "v5e"], "--targets needs one or several"),
    ],
)
def test_bad_options_are_named(options, message, tmp_path, capsys):
    assert run(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
