"""The README's Python runs as printed, top to bottom; its command lines are parsed, not run."""

import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest

from experiments import cli
from experiments.harness.commands import Command

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_python_blocks_run_as_printed():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 5
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["prediction"].shape == (1, 1)


def test_pictures_and_links_exist():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(targets) >= 4
    for target in targets:
        file = ROOT / target
        assert file.exists(), target
        assert file.stat().st_size < 100_000 or file.suffix != ".png", f"{target} is large"


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"python -m experiments ([\w-]+)", README)))
)
def test_experiments_exist(command):
    assert cli.find(command).name == command


def commands():
    """Each command line of the README, without comments and redirections."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL)).replace("\\\n", " ")
    found = [shlex.split(line, comments=True) for line in blocks.splitlines()]
    found = [words for words in found if words[:3] == ["python", "-m", "experiments"]]
    return [
        tuple(re.split(r"\x00[<>]", "\x00".join(words[3:]))[0].split("\x00")) for words in found
    ]


@pytest.mark.parametrize("command", sorted({each for each in commands() if each[0]}))
def test_commands_are_parsed_as_printed(command, monkeypatch):
    """Every option is known and has a value that is accepted; nothing is left out."""
    assert not any("…" in word for word in command)
    experiment = cli.find(command[0])
    started = []

    monkeypatch.setattr(Command, "run", lambda self, options: started.append(options))
    with pytest.raises(SystemExit) if "--help" in command else nullcontext():
        cli.run(experiment, command[1:])
    assert len(started) == ("--help" not in command)
