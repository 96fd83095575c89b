"""One alignment out of two directions, each of which links every word of one side at most once."""

from collections.abc import Callable

from attn_jax.checks import require
from attn_jax.metrics.alignments import Links

METHODS = ("intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and")
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(
    forward: Links, backward: Links, *, method: str = "grow-diag-final"
) -> set[tuple[int, int]]:
    """Combine two alignments of a sentence, both as (source, target). (Och & Ney 2003, section 5.)

    "intersection" is precise, "union" complete. "grow-diag" starts from the intersection and takes
    neighbouring links of the union, diagonals too, that align a word not aligned yet; "-final" then
    takes any link of either direction that does, "-final-and" only those that align two such words.
    (Koehn, Och & Marcu 2003, section 3.3; the order in which links are tried is Moses's.)

    >>> sorted(symmetrize({(0, 0), (1, 1)}, {(0, 0), (2, 1)}, method="intersection"))
    [(0, 0)]
    """
    require(method in METHODS, "method", f"be one of {', '.join(METHODS)}", repr(method))
    if method == "union":
        return set(forward | backward)
    links = set(forward & backward)
    if method == "intersection":
        return links
    _grow(links, forward | backward)
    if method != "grow-diag":
        enough = all if method.endswith("and") else any
        for direction in (forward, backward):
            _add_unaligned(links, direction, enough)
    return links


def _grow(links: set[tuple[int, int]], union: Links) -> None:
    """Add neighbours until none is left; one added counts as soon as the sweep reaches it."""
    sources, targets = {s for s, _ in links}, {t for _, t in links}
    grown = True
    while grown:
        grown = False
        for here in sorted(union, key=_by_target):
            if here not in links:
                continue
            for step in NEIGHBOURS:
                link = (here[0] + step[0], here[1] + step[1])
                new = link[0] not in sources or link[1] not in targets
                if new and link in union:
                    links.add(link)
                    sources.add(link[0])
                    targets.add(link[1])
                    grown = True


def _add_unaligned(
    links: set[tuple[int, int]], direction: Links, enough: Callable[..., bool]
) -> None:
    sources, targets = {s for s, _ in links}, {t for _, t in links}
    for link in sorted(direction, key=_by_target):
        if enough((link[0] not in sources, link[1] not in targets)):
            links.add(link)
            sources.add(link[0])
            targets.add(link[1])


def _by_target(link: tuple[int, int]) -> tuple[int, int]:
    return link[1], link[0]
