"""The named shapes: sizes of query, key and value, and the source of each.

The letters are jax.nn's: query [B, T, N, H], key [B, S, K, H], value [B, S, K, E]. A shape that has
no batch in its source gets one that a machine of two cores can run.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from experiments.harness.errors import require_known


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One attention problem, with the score and the normalizer that it is known for."""

    name: str
    family: str
    source: str
    queries: int
    keys: int
    features: int
    value_features: int
    batch: int = 1
    heads: int = 1
    key_heads: int = 1
    causal: bool = False
    window: tuple[int, int] | None = None
    score: str = "scaled-dot"
    normalizer: str = "softmax"

    def span(self, query: int) -> tuple[int, int]:
        """Return (first, end): the keys first ≤ j < end to which this query may attend."""
        left, right = self.window or (self.queries, self.keys)
        right = min(right, 0) if self.causal else right
        first = max(query - left, 0)
        return first, max(min(query + right + 1, self.keys), first)

    @property
    def pairs(self) -> int:
        """How many pairs of one query and one key of a head there are, without the masked ones."""
        return sum(end - first for first, end in map(self.span, range(self.queries)))

    def __str__(self) -> str:
        heads = f"{self.heads} heads" if self.heads > 1 else "1 head"
        heads += f" ({self.key_heads} of keys)" if self.key_heads != self.heads else ""
        values = self.value_features
        features = f"{self.features}" + (f", values {values}" if values != self.features else "")
        mask = ", causal" * self.causal + (f", window {self.window}" if self.window else "")
        return f"{self.batch} × {heads}, {self.queries} × {self.keys} × {features}{mask}"


def _shape(family: str, name: str, source: str, queries: int, keys: int = 0, **rest) -> Shape:
    """Return a shape; by default self-attention of 64 features, each head with keys of its own."""
    rest = {"heads": 1, "features": 64} | rest
    rest = {"key_heads": rest["heads"], "value_features": rest["features"]} | rest
    sizes = {"queries": queries, "keys": keys or queries}
    return Shape(name=name, family=family, source=source, **sizes, **rest)


BERT = "BERT-base (Devlin et al. 2018, sec. 3)"
GPT2 = "GPT-2 small (Radford et al. 2019, table 2)"
LLAMA = "Llama 3 8B: 32 query heads on 8 key heads of 128 (Grattafiori et al. 2024, table 3)"
VIT = "ViT-B/16, 196 patches and a class token (Dosovitskiy et al. 2020, table 1)"
WHISPER = "Whisper large's encoder, 30 s are 1500 frames (Radford et al. 2022, table 1)"
PERCEIVER = "few latents read a long input, as in Perceiver (Jaegle et al. 2021, sec. 3)"
DECODE = LLAMA + ", one token with a full cache"
BAHDANAU = "minibatches of 80 sentences of at most 50 words (Bahdanau et al. 2014, A.2.3, B.2)"
KEOPS = "kernel sums over point clouds in 3 dimensions (Charlier et al. 2021, sec. 4)"
MISTRAL = "sliding window as in Mistral 7B (Jiang et al. 2023, sec. 2), 256 wide"
SHAH = "FlashAttention-3 (Shah et al. 2024, sec. 4.1): 16k tokens, 2,048 features in all heads"
OURS = "attn_jax's own performance targets"
TINY = "one of each kind, in seconds"
POINTS = {"features": 3, "value_features": 1, "score": "gaussian"}
GROUPED = {"heads": 32, "key_heads": 8, "features": 128}
SPARSE_ADDITIVE = {"score": "additive", "normalizer": "sparsemax"}

ALL = (
    _shape("models", "bert-base", BERT, 512, batch=4, heads=12),
    _shape("models", "gpt2", GPT2, 1024, batch=4, heads=12, causal=True),
    _shape("models", "llama3-8b", LLAMA, 8192, **GROUPED, causal=True),
    _shape("models", "vit-b16", VIT, 197, batch=16, heads=12),
    _shape("models", "whisper-encoder", WHISPER, 1500, heads=20),
    _shape("models", "cross-16k", PERCEIVER, 128, 16_384, heads=8),
    _shape("models", "decode-8k", DECODE, 1, 8192, **GROUPED),
    _shape("models", "bahdanau", BAHDANAU, 50, batch=80, features=512, score="additive"),
    _shape("models", "nadaraya-watson", KEOPS, 10_000, 100_000, **POINTS),
    _shape("long", "long-4k", OURS, 4096, heads=8),
    _shape("long", "long-4k-causal", OURS, 4096, heads=8, causal=True),
    _shape("long", "long-16k", OURS, 16_384),
    _shape("long", "long-64k", OURS, 65_536),
    _shape("long", "window-256", MISTRAL, 16_384, window=(256, 0)),
    _shape("long", "additive-2k", OURS, 2048, features=128, score="additive"),
    *(_shape("growth", f"growth-{n}", OURS, n) for n in (2**p for p in range(10, 17))),
    *(
        _shape(
            "flash-attention-3",
            f"fa3-{features}-{n}" + "-causal" * causal,
            SHAH,
            n,
            batch=16_384 // n,
            heads=2048 // features,
            features=features,
            causal=causal,
        )
        for features in (64, 128, 256)
        for causal in (False, True)
        for n in (512, 1024, 2048, 4096, 8192, 16_384)
    ),
    _shape(
        "smoke", "smoke-heads", TINY, 13, batch=2, heads=4, key_heads=2, features=8, causal=True
    ),
    _shape("smoke", "smoke-window", TINY, 19, features=8, window=(3, 0)),
    _shape("smoke", "smoke-additive", TINY, 5, 11, features=7, value_features=3, **SPARSE_ADDITIVE),
    _shape("smoke", "smoke-kernel", TINY, 5, 23, **POINTS),
)

SHAPES = {shape.name: shape for shape in ALL}
FAMILIES = {
    "default": ("bert-base", "gpt2", "vit-b16", "decode-8k", "bahdanau", "long-4k-causal"),
    "all": tuple(shape.name for shape in ALL if shape.family != "smoke"),
}
for _each in ALL:
    FAMILIES[_each.family] = (*FAMILIES.get(_each.family, ()), _each.name)


def select(names: Iterable[str]) -> list[Shape]:
    """Return the shapes of these names or families, each once."""
    require_known("shape", names, [*FAMILIES, *SHAPES])
    chosen = dict.fromkeys(each for name in names for each in FAMILIES.get(name, (name,)))
    return [SHAPES[name] for name in chosen]
