"""What the translations of dates are worth: exact match by language and format, worst first."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_jax import text
from experiments.data import dates
from experiments.data.dates import DateOptions, Written
from experiments.data.pairs import Pairs
from experiments.date_translation import figures
from experiments.harness import tables
from experiments.harness.errors import UserError, unknown
from experiments.harness.runs import Run
from experiments.seq2seq import saved
from experiments.seq2seq.options import SearchOptions
from experiments.seq2seq.translator import Translator, cut

BATCH = 512
LENGTHS = (48,)  # that sources are padded to; then doubled
GOOD = 0.995
MOST_LANGUAGES = 40  # that the table and the picture show


def translator(model: Any, target: Any, search: SearchOptions) -> Translator:
    """Return what translates encoded dates in few shapes; it writes no unknown character."""
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
    """model -> the share of encoded dates that are right; the search of one kind of models."""

    def __init__(self, pairs: Pairs, target: Any, search: SearchOptions):
        self.pairs, self.target, self.search = pairs, target, search
        self.translator: Translator | None = None

    def __call__(self, model: Any) -> float:
        self.translator = self.translator or translator(model, self.target, self.search)
        self.translator.models = [model]  # what is compiled serves all of them
        found = self.translator(self.pairs.source)
        pairs = zip(found, self.pairs.target, strict=True)
        return float(np.mean([best.ids == list(ids) for (best, *_), ids in pairs]))


def given(texts: Sequence[str], languages: Sequence[str]) -> list[Written]:
    """Return dates like "de: 17. Mai 2024", without their meaning."""
    written = []
    for each in texts:
        language, colon, date = each.partition(":")
        if not colon or not date.strip():
            raise UserError(
                f'--dates needs a language and a date, "de: 17. Mai 2024". Got {each!r}.'
            )
        if language not in languages:
            raise unknown("language", language, languages)
        written.append(Written(date.strip(), language, "", ""))
    return written


def report(output: Run, texts: Sequence[str], search: SearchOptions) -> None:
    """Print, write and draw how many unseen dates are right; draw the given dates, or some."""
    loaded = saved.load(output.directory)
    drawn = given(texts, dates.languages_of(loaded.source))
    test = dates.written("test", DateOptions(**loaded.options["data"]))
    drawn = drawn or figures.worth_drawing(test)
    translate = translator(loaded.model, loaded.target, search)
    every = [(each.text, each.language) for each in (*test, *drawn)]
    sources = cut(dates.sources(every, loaded.source), translate.most_source)
    found = [best for best, *_ in translate(sources)]
    predicted = [each.text for each in found[: len(test)]]
    scores = exact_match(predicted, test)
    output.update_metrics(scores)
    output.write_predictions(
        {
            "source": [each.text for each in test],
            "language": [each.language for each in test],
            "format": [each.format for each in test],
            "prediction": predicted,
            "truth": [each.iso for each in test],
            "right": right(predicted, test),
        }
    )
    show(scores)
    output.clear_figures("alignment_*")
    worst = dict(list(scores["by_language"].items())[:MOST_LANGUAGES])
    pairs = list(zip(drawn, found[len(test) :], strict=True))
    for name, figure in figures.draw(output.directory, pairs, worst):
        output.write_figure(name, figure)


def exact_match(translations: Sequence[str], truth: Sequence[Written]) -> dict[str, Any]:
    """Return the share of right dates: of all, by language (the worst first), by format."""
    correct = right(translations, truth)

    def by(names: Sequence[str]) -> dict[str, float]:
        given = np.array(names)
        shares = {name: float(correct[given == name].mean()) for name in dict.fromkeys(names)}
        return dict(sorted(shares.items(), key=lambda each: each[1]))

    return {
        "dates": len(truth),
        "exact_match": float(correct.mean()),
        "by_language": by([each.language for each in truth]),
        "by_format": by([each.format for each in truth]),
        "by_language_and_format": by([f"{each.language} {each.format}" for each in truth]),
    }


def right(translations: Sequence[str], truth: Sequence[Written]) -> np.ndarray:
    """Return which dates are right."""
    return np.array([a == b.iso for a, b in zip(translations, truth, strict=True)])


def show(scores: dict[str, Any]) -> None:
    """Print exact match in per cent, a line for each language, the worst first."""
    of_both, languages = scores["by_language_and_format"], scores["by_language"]

    def row(name: str, whole: float, each: dict[str, float]) -> dict[str, Any]:
        shares = {"all": whole} | {form: each[form] for form in dates.FORMATS}
        return {"exact match, %": name} | {name: 100 * share for name, share in shares.items()}

    rows = [row("all languages", scores["exact_match"], scores["by_format"])]
    for code in list(languages)[:MOST_LANGUAGES]:
        each = {form: of_both[f"{code} {form}"] for form in dates.FORMATS}
        rows.append(row(f"{code} {dates.name_of(code)}", languages[code], each))
    print(f"\n{scores['dates']:,} unseen dates")
    tables.print_table(rows)
    good = sum(share >= GOOD for share in languages.values())
    print(f"{good} of {len(languages)} languages reach {100 * GOOD:g} %")
