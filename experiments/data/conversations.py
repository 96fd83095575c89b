"""What one says and what the other answers: turns of the chitchat data set (MIT, unmoderated).

7,168 conversations of students in English; a turn is all that one of them writes before the other
does. Conversations, not turns, are divided into training, dev and test.
"""

import json
import zipfile
from pathlib import Path

from experiments.data.pairs import Pairs
from experiments.data.pypi_archive import Wheel, obtain

CHITCHAT = Wheel(
    package="chitchat-dataset",
    version="0.9.0",
    file="chitchat_dataset-0.9.0-py3-none-any.whl",
    size=8_105_664,
    sha256="7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
)
FILE = "chitchat_dataset/dataset.json"
TURN_SEPARATOR = " / "  # between the turns of a source
HELD_OUT = 20  # one conversation of so many is for dev, the next one for test


def load(*, turns: int = 1, most_words: int = 20, data_dir: Path | None = None) -> list[Pairs]:
    """Return the training, dev and test pairs of turns: up to `turns` said before, and the answer.

    A pair whose answer, or any turn before it, has more than `most_words` words is left out.
    """
    with zipfile.ZipFile(obtain(CHITCHAT, data_dir)) as archive:
        conversations = json.loads(archive.read(FILE))
    parts = [Pairs([], []), Pairs([], []), Pairs([], [])]
    for number, name in enumerate(sorted(conversations)):
        part = parts[{0: 1, 1: 2}.get(number % HELD_OUT, 0)]
        said = [
            " ".join(" ".join(each["text"] for each in turn).split())
            for turn in conversations[name]["messages"]
        ]
        for at in range(1, len(said)):
            before = said[max(at - turns, 0) : at]
            if all(0 < len(turn.split()) <= most_words for turn in (*before, said[at])):
                part.source.append(TURN_SEPARATOR.join(before))
                part.target.append(said[at])
    return parts
