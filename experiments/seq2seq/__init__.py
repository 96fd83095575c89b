"""From pairs of lines to a model that translates, whatever the two sides are.

corpora.py      files or what comes out of the box → pairs of lines, their vocabularies
models.py       options → encoder-decoder; its twin of equal size without attention
fits.py         vocabularies and pairs → a trained model, checkpoints, a learning curve
saved.py        what a run's directory holds, written once and read back: options, vocabularies
translator.py   lines → translations in order: greedy or beam search, ensembles, alignments
lines.py        lines from a stream as they come; asked.py: the files that `translate` is asked for
scoring.py      translations against references; reports.py: by length, the worst, alignments
evaluation.py   all that is told of a trained model; figures.py, letters.py: its pictures
"""
