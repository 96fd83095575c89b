"""From pairs of lines to a model that translates, whatever the two sides are.

models.py       options → encoder-decoder; its twin of equal size without attention
fits.py         vocabularies and pairs → a trained model, checkpoints, a learning curve
saved.py        what a run's directory holds, written once and read back: options, vocabularies
translator.py   lines → translations in order: greedy or beam search, ensembles, alignments
"""
