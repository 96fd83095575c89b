"""An open model from a local folder: its weights, its tokenizer, the tokens that end a text."""

import json
from typing import Any

import numpy as np
import tokenizers

from attn_jax.nn import LanguageModel, interop
from experiments.harness.errors import UserError, as_user_errors
from experiments.language_model import Generate


def load(options: Generate) -> tuple[Any, ...]:
    """Return the model, and functions from text to tokens, from tokens to text, of one token."""
    folder = options.weights
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"--weights must be a folder with a tokenizer.json. Got {folder}.")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise UserError(f"{file} is damaged, or no tokenizer: {error}") from error
    with as_user_errors(ValueError, OSError):
        model = interop.from_torch(folder)
    if not isinstance(model, LanguageModel):
        kind = type(model).__name__
        raise UserError(f"--weights must be of a language model, to generate. Got a {kind}.")
    known, size = tokenizer.get_vocab_size(), model.embedding.tokens.shape[0]
    if known > size:
        raise UserError(f"tokenizer.json has {known} tokens, the model {size}: they do not fit.")

    def encode(text: str) -> np.ndarray:
        return np.asarray(tokenizer.encode(text).ids, np.int32)

    def decode(ids: list[int]) -> str:
        return tokenizer.decode(ids)

    def token(number: int) -> str:
        return decode([number]) or tokenizer.id_to_token(number) or str(number)

    ends = json.loads((folder / "config.json").read_text()).get("eos_token_id")
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return model, encode, decode, token, frozenset(ends)
