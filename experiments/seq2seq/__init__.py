"""From pairs of sources and targets to a model that finds targets: what several experiments share.

An experiment gives encoded pairs and two vocabularies (`Task`), its options, and what it reports.

options.py      of models, training and search, light enough for --help
models.py       options → encoder-decoder; its twin of equal size without attention
train.py        a task → a trained model and its twin in a run's directory
saved.py        the directory as a model that can be used
translator.py   sources → translations in order: greedy or beam search, ensembles, weights
evaluate.py     the systems of a run, and the searches that each is evaluated with
scoring.py      translations compared with references
alignments.py   links between words, by attention and by IBM model 1 (ibm_model_1.py)
figures.py      weights as a heat map, the learning curve
output.py       links and pictures of what a person gave, to files that they named
"""
