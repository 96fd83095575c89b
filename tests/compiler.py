"""What XLA's compiler for CPUs can be told, by version."""

from importlib.metadata import version

# jaxlib 0.10 chooses between two code generators for fusions; later ones have the newer one only
HAS_OLD_EMITTERS = version("jaxlib").startswith("0.10.")
