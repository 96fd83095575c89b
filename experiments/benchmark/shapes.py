"""The named shapes: who attends to how much, and where each of them comes from.

The letters are jax.nn's: query [B, T, N, H], key [B, S, K, H], value [B, S, K, E]. A shape that has
no batch in its source gets one that a machine of two cores can run.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from experiments.harness.errors import unknown


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
        if self.key_heads != self.heads:
            heads += f" ({self.key_heads} of keys)"
        features = f"{self.features}"
        if self.value_features != self.features:
            features += f", values {self.value_features}"
        mask = ", causal" * self.causal
        mask += f", window {self.window}" if self.window else ""
        return f"{self.batch} × {heads}, {self.queries} × {self.keys} × {features}{mask}"


def _self(name: str, family: str, source: str, n: int, **rest) -> Shape:
    """Return self-attention: as many keys as queries, values as wide as keys, 64 features."""
    rest = {"heads": 1, "features": 64} | rest
    rest = {"key_heads": rest["heads"], "value_features": rest["features"]} | rest
    return Shape(name=name, family=family, source=source, queries=n, keys=n, **rest)


LLAMA = "Llama 3 8B: 32 query heads on 8 key heads of 128 (Grattafiori et al. 2024, table 3)"
PERCEIVER = "few latents read a long input, as in Perceiver (Jaegle et al. 2021, sec. 3)"
KEOPS = "kernel sums over point clouds in 3 dimensions (Charlier et al. 2021, sec. 4)"
BAHDANAU = "minibatches of 80 sentences of at most 50 words (Bahdanau et al. 2014, A.2.3, B.2)"
MISTRAL = "sliding window as in Mistral 7B (Jiang et al. 2023, sec. 2), 256 wide"
SHAH = "FlashAttention-3 (Shah et al. 2024, sec. 4.1): 16k tokens, 2,048 features in all heads"
OURS = "attn_jax's own performance targets"
TINY = "one of each kind, in seconds"

MODELS = (
    _self("bert-base", "models", "BERT-base (Devlin et al. 2018, sec. 3)", 512, batch=4, heads=12),
    _self(
        "gpt2",
        "models",
        "GPT-2 small (Radford et al. 2019, table 2)",
        1024,
        batch=4,
        heads=12,
        causal=True,
    ),
    _self("llama3-8b", "models", LLAMA, 8192, heads=32, key_heads=8, features=128, causal=True),
    _self(
        "vit-b16",
        "models",
        "ViT-B/16, 196 patches and a class token (Dosovitskiy et al. 2020, table 1)",
        197,
        batch=16,
        heads=12,
    ),
    _self(
        "whisper-encoder",
        "models",
        "Whisper large's encoder, 30 s are 1500 frames (Radford et al. 2022, table 1)",
        1500,
        heads=20,
    ),
    Shape(
        name="cross-16k",
        family="models",
        source=PERCEIVER,
        queries=128,
        keys=16_384,
        features=64,
        value_features=64,
        heads=8,
        key_heads=8,
    ),
    Shape(
        name="decode-8k",
        family="models",
        source=LLAMA + ", one token with a full cache",
        queries=1,
        keys=8192,
        features=128,
        value_features=128,
        heads=32,
        key_heads=8,
    ),
    Shape(
        name="bahdanau",
        family="models",
        source=BAHDANAU,
        queries=50,
        keys=50,
        features=512,
        value_features=512,
        batch=80,
        score="additive",
    ),
    Shape(
        name="nadaraya-watson",
        family="models",
        source=KEOPS,
        queries=10_000,
        keys=100_000,
        features=3,
        value_features=1,
        score="gaussian",
    ),
)

LONG = (
    _self("long-4k", "long", OURS, 4096, heads=8),
    _self("long-4k-causal", "long", OURS, 4096, heads=8, causal=True),
    _self("long-16k", "long", OURS, 16_384),
    _self("long-64k", "long", OURS, 65_536),
    _self("window-256", "long", MISTRAL, 16_384, window=(256, 0)),
    _self("additive-2k", "long", OURS, 2048, features=128, score="additive"),
)

GROWTH = tuple(_self(f"growth-{n}", "growth", OURS, n) for n in (2**p for p in range(10, 17)))

FLASH_ATTENTION_3 = tuple(
    _self(
        f"fa3-{features}-{n}" + "-causal" * causal,
        "flash-attention-3",
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
)

SMOKE = (
    _self("smoke-heads", "smoke", TINY, 13, batch=2, heads=4, key_heads=2, features=8, causal=True),
    _self("smoke-window", "smoke", TINY, 19, features=8, window=(3, 0)),
    Shape(
        name="smoke-additive",
        family="smoke",
        source=TINY,
        queries=5,
        keys=11,
        features=7,
        value_features=3,
        score="additive",
        normalizer="sparsemax",
    ),
    Shape(
        name="smoke-kernel",
        family="smoke",
        source=TINY,
        queries=5,
        keys=23,
        features=3,
        value_features=1,
        score="gaussian",
    ),
)

SHAPES = {shape.name: shape for shape in (*MODELS, *LONG, *GROWTH, *FLASH_ATTENTION_3, *SMOKE)}
DEFAULT = ("bert-base", "gpt2", "vit-b16", "decode-8k", "bahdanau", "long-4k-causal")
FAMILIES = {
    "default": DEFAULT,
    "all": tuple(name for name, shape in SHAPES.items() if shape.family != "smoke"),
} | {
    family: tuple(name for name, shape in SHAPES.items() if shape.family == family)
    for family in dict.fromkeys(shape.family for shape in SHAPES.values())
}


def select(names: Iterable[str]) -> list[Shape]:
    """Return the shapes of these names or families, each once."""
    chosen: dict[str, Shape] = {}
    for name in names:
        if name not in SHAPES and name not in FAMILIES:
            raise unknown("shape", name, [*FAMILIES, *SHAPES])
        chosen |= {each: SHAPES[each] for each in FAMILIES.get(name, (name,))}
    return list(chosen.values())
