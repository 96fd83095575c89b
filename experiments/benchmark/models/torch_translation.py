"""The recurrent encoder-decoder with additive attention in PyTorch, as its users write it well.

For `machine-translation speed`: the same layers and sizes as `models.build` makes of
`--score additive --cell gru`. The encoder is PyTorch's own GRU over packed sequences, the decoder a
loop over its GRU cell; the output layer gets the real tokens alone.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attn_jax.text import END, START
from experiments.seq2seq.options import ModelOptions


class Twin(nn.Module):
    """Bahdanau's model: attend with the last state, step, read out."""

    def __init__(self, options: ModelOptions, sources: int, targets: int):
        super().__init__()
        embedding, features = options.embedding, options.features
        self.source = nn.Embedding(sources, embedding)
        self.target = nn.Embedding(targets, embedding)
        self.encoder = nn.GRU(embedding, features, bidirectional=True, batch_first=True)
        self.initial = nn.Linear(2 * features, features)
        self.keys = nn.Linear(2 * features, features)
        self.query = nn.Linear(features, features, bias=False)
        self.weight = nn.Linear(features, 1, bias=False)
        self.cell = nn.GRUCell(embedding + 2 * features, features)
        readout = embedding if options.tied else features
        self.readout = nn.Linear(3 * features + embedding, readout)
        self.output = nn.Linear(readout, targets)
        if options.tied:
            self.output.weight = self.target.weight
        self.dropout = nn.Dropout(options.dropout)

    def encode(self, source, length):
        """Return memory, keys, what padding adds to scores, and the decoder's first state."""
        packed = pack_padded_sequence(
            self.dropout(self.source(source)), length.clamp(min=1), True, enforce_sorted=False
        )
        memory, final = self.encoder(packed)
        memory, _ = pad_packed_sequence(memory, True, total_length=source.shape[1])
        state = torch.tanh(self.initial(torch.cat([final[0], final[1]], -1)))
        real = torch.arange(source.shape[1])[None] < length[:, None]
        return memory, self.keys(memory), torch.where(real, 0.0, -1e9), state

    def advance(self, embedded, state, memory, keys, padding):
        """Return the next state and the context."""
        scores = self.weight(torch.tanh(self.query(state)[:, None] + keys)).squeeze(-1) + padding
        context = torch.bmm(scores.softmax(-1)[:, None], memory).squeeze(1)
        return self.cell(torch.cat([embedded, context], -1), state), context

    def logits(self, state, context, embedded):
        """Return scores of every target token."""
        inputs = torch.cat([state, context, embedded], -1)
        return self.output(self.dropout(torch.tanh(self.readout(inputs))))

    def loss(self, batch, label_smoothing):
        """Return the mean cross-entropy of the real target tokens."""
        target, length = batch["target"], batch["target_length"]
        memory, keys, padding, state = self.encode(batch["source"], batch["source_length"])
        before = torch.cat([torch.full_like(target[:, :1], START), target[:, :-1]], 1)
        embedded = self.dropout(self.target(before))
        states, contexts = [], []
        for time in range(target.shape[1]):
            state, context = self.advance(embedded[:, time], state, memory, keys, padding)
            states.append(state)
            contexts.append(context)
        real = torch.arange(target.shape[1])[None] < length[:, None]
        parts = [torch.stack(each, 1)[real] for each in (states, contexts)]
        logits = self.logits(*parts, embedded[real])
        return functional.cross_entropy(logits, target[real], label_smoothing=label_smoothing)

    @torch.no_grad()
    def greedy(self, batch, longest):
        """Return the most probable tokens, step by step, until all lines have ended."""
        memory, keys, padding, state = self.encode(batch["source"], batch["source_length"])
        token = torch.full((len(state),), START)
        written, done = [], torch.zeros(len(state), dtype=torch.bool)
        for _ in range(longest):
            embedded = self.target(token)
            state, context = self.advance(embedded, state, memory, keys, padding)
            token = self.logits(state, context, embedded).argmax(-1)
            written.append(token)
            done |= token == END
            if bool(done.all()):
                break
        return torch.stack(written, 1)
