r"""A language model on any text: bits per character, attention maps, generated text.

    python -m experiments language-model                                  Python's own help texts
    python -m experiments language-model --text FILE --tokens bpe --name mine
    python -m experiments language-model generate --prompt "The import statement"
    python -m experiments language-model compare               masks × positions × normalizers
    python -m experiments language-model speed             beside flax.nnx's modules and PyTorch's

`train` trains a Transformer (a quarter of an hour on two cores; 1.60 bits per character of Python's
help that it did not see), and draws the weights of every head on `--sentence` and each head's
entropy. `evaluate` does so again, on another text where `--text` names one, and writes
evaluation.json. `generate` continues a prompt token by token, from a cache. `speed` measures models
of its own sizes: training, a long context's memory, decoding, compiling.
"""

from experiments.language_model.options import Compare, Evaluate, Generate, Speed, Train


def train_model(options: Train) -> None:
    """Train one model."""
    from experiments.language_model.train import run

    run(options)


def compare_models(options: Compare) -> None:
    """Train one model of each row of `train.COMPARED`."""
    from experiments.language_model.train import run

    run(options)


def evaluate_model(options: Evaluate) -> None:
    """Evaluate a trained model."""
    from experiments.language_model.evaluate import run

    run(options)


def generate_text(options: Generate) -> None:
    """Continue a prompt."""
    from experiments.language_model.generate import run

    run(options)


def measure_speed(options: Speed) -> None:
    """Measure models of their own sizes."""
    from experiments.benchmark.models.language_model import run

    run(options)


COMMANDS = {
    "train": train_model,
    "compare": compare_models,
    "evaluate": evaluate_model,
    "generate": generate_text,
    "speed": measure_speed,
}
