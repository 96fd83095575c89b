"""What the translations of dates are worth: exact match by language and format, worst first."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.data import dates
from experiments.data.dates import Written
from experiments.harness import tables
from experiments.seq2seq.train import Pairs
from experiments.seq2seq.translator import SearchOptions, Translation, Translator

BATCH = 512
LENGTHS = (48,)  # that sources are padded to; then doubled
GOOD = 0.995
MOST_LANGUAGES = 40  # that the table and the picture show


def translator(model: Any, target: Any, search: SearchOptions) -> Translator:
    """Return what translates encoded dates in few shapes; it writes no unknown character."""
    from attn_jax import text

    return Translator(
        [model],
        target,
        search,
        batch_size=BATCH,
        positions=BATCH * LENGTHS[-1],
        lengths=LENGTHS,
        forbidden=(text.PAD, text.UNKNOWN, text.START),
    )


class ExactMatch:
    """model -> the share of encoded dates that are right; its search is compiled once."""

    def __init__(self, pairs: Pairs, target: Any, search: SearchOptions):
        self.pairs, self.target, self.search = pairs, target, search
        self.translator: Translator | None = None

    def __call__(self, model: Any) -> float:
        """Translate all dates; the models have to be of one kind."""
        if self.translator is None:
            self.translator = translator(model, self.target, self.search)
        found = self.translator.of([model])(self.pairs.sources)
        pairs = zip(found, self.pairs.targets, strict=True)
        return float(np.mean([best.ids == list(ids) for (best, *_), ids in pairs]))


def exact_match(translations: Sequence[str], truth: Sequence[Written]) -> dict[str, Any]:
    """Return the share of right dates: of all, by language (the worst first), by format."""
    right = right_of(translations, truth)

    def by(names: Sequence[str]) -> dict[str, float]:
        given = np.array(names)
        shares = {name: float(right[given == name].mean()) for name in dict.fromkeys(names)}
        return dict(sorted(shares.items(), key=lambda each: each[1]))

    return {
        "dates": len(truth),
        "exact_match": float(right.mean()),
        "by_language": by([each.language for each in truth]),
        "by_format": by([each.format for each in truth]),
        "by_language_and_format": by([f"{each.language} {each.format}" for each in truth]),
    }


def right_of(translations: Sequence[str], truth: Sequence[Written]) -> np.ndarray:
    """Return which dates are right."""
    return np.array([a == b.iso for a, b in zip(translations, truth, strict=True)])


def show(scores: dict[str, Any]) -> None:
    """Print exact match in per cent, a line for each language, the worst first."""
    of_both, languages = scores["by_language_and_format"], scores["by_language"]

    def row(name: str, whole: float, each: dict[str, float]) -> dict[str, Any]:
        return {"exact match, %": name, "all": 100 * whole} | {
            form: 100 * each[form] for form in dates.FORMATS
        }

    rows = [row("all languages", scores["exact_match"], scores["by_format"])]
    for code in list(languages)[:MOST_LANGUAGES]:
        each = {form: of_both[f"{code} {form}"] for form in dates.FORMATS}
        rows.append(row(f"{code} {dates.name_of(code)}", languages[code], each))
    print(f"\n{scores['dates']:,} unseen dates")
    tables.print_table(rows)
    good = sum(share >= GOOD for share in languages.values())
    print(f"{good} of {len(languages)} languages reach {100 * GOOD:g} %")


def predictions(translations: Sequence[Translation], truth: Sequence[Written]) -> dict[str, Any]:
    """Return the columns of predictions.csv."""
    texts = [each.text for each in translations]
    return {
        "source": [each.text for each in truth],
        "language": [each.language for each in truth],
        "format": [each.format for each in truth],
        "prediction": texts,
        "truth": [each.iso for each in truth],
        "right": right_of(texts, truth),
    }
