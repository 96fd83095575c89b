"""What can be compiled: names alone, since `--help` shows them."""

MEMBERS = (
    "softmax",  # of a scaled dot product; each of the others differs from it in one slot
    "cosine",
    "bilinear",
    "additive",
    *(
        f"kernel-{name}"
        for name in (
            "gaussian",
            "boxcar",
            "triangular",
            "epanechnikov",
            "biweight",
            "triweight",
            "tricube",
            "cosine",
            "logistic",
            "laplace",
        )
    ),
    "bias",
    "relative-bias",
    "alibi",
    "soft-cap",
    "causal",
    "window",
    "padding",
    "segments",
    "prefix",
    "dense-mask",
    "softmax-sink",
    "sparsemax",
    "entmax15",
    "entmax3",
    "entmax",
    "sigmoid",
    "dropout",
)
MODULES = ("language-model", "transformer", "recurrent")
