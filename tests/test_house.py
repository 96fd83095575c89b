"""Imports point down, every module has a floor, every public name a docstring and a row."""

import ast
import graphlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import attn_jax
from attn_jax import kernels
from tests.members import KERNELS, SLOTS

PACKAGE = Path(attn_jax.__file__).parent
FLOORS = {
    name: floor
    for floor, names in enumerate(
        [
            "jax_versions",
            "kernels checks precision blocks block_mask integers constraints meshes primitive",
            "recurrence position_encodings matmul slots",
            "thresholds",
            "scores score_mods masks normalizers dropout",
            "block_scores attention_slots",
            "cudnn",
            "streaming attention",
            "heads",
            "drop_in multi_head decoding training metrics plots testing regression text",
            "sharded",
            "nn",
        ]
    )
    for name in names.split()
}
SERVANTS = {("attention", "streaming")}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
each_file = pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))


def room(path):
    """A file's module under attn_jax: a folder counts as one."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path):
    """The modules of attn_jax that a file imports, also late or for type checking."""
    rooms = set()
    package = ("attn_jax", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, node.module or ""]).strip(".")
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("attn_jax.")}
        assert "attn_jax" not in names, f"{path.name} imports the package itself"
    return rooms


@each_file
def test_imports_point_down(path):
    here = room(path)
    for there in imported_rooms(path) - {here}:
        down = FLOORS[there] < FLOORS[here]
        assert down or (here, there) in SERVANTS, f"{here} imports {there}"


@each_file
def test_names_say_what_is_inside(path):
    assert path.stem not in {"utils", "util", "common", "helpers", "helper", "base", "misc", "core"}
    assert room(path) in FLOORS, f"{path.name} has no floor"


def imported_packages(path):
    """The packages that a file imports, wherever in it."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            packages.add(node.module.split(".")[0])
    return packages


def test_modules_of_experiments_import_each_other_in_no_circle():
    """Whichever is imported first: a command imports its function's module alone."""
    root = PACKAGE.parent
    paths = sorted((root / "experiments").rglob("*.py"))
    names = {path: ".".join(path.relative_to(root).with_suffix("").parts) for path in paths}
    names = {path: name.removesuffix(".__init__") for path, name in names.items()}
    graph = {}
    for path, name in names.items():
        graph[name] = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                every = {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
                graph[name] |= every.intersection(names.values()) - {name}
    assert sum(map(len, graph.values())) > len(graph)
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names a circle


def test_tests_of_the_library_do_without_the_experiments():
    """A test of a module is named like it. The search has to find such tests, and their imports."""
    here, found = Path(__file__).parent, {}
    for path in sorted(here.rglob("test_*.py")):
        of = (PACKAGE / path.relative_to(here)).with_name(path.name.removeprefix("test_"))
        if of.exists() or of.with_suffix("").is_dir():
            found[path.name] = imported_packages(path)
    assert {"test_attention.py", "test_streaming.py", "test_recurrent.py"} <= found.keys()
    assert all("attn_jax" in packages for packages in found.values())
    assert [name for name, packages in found.items() if "experiments" in packages] == []
    assert "experiments" in imported_packages(here / "test_experiments_cli.py")


def test_the_parser_sees_imports():
    assert {"scores", "masks", "normalizers"} <= imported_rooms(PACKAGE / "attention.py")


def public(module):
    return {
        name: thing
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", "").startswith("attn_jax")
    }


@pytest.mark.parametrize("name", public(attn_jax))
def test_public_name_has_a_docstring(name):
    thing = getattr(attn_jax, name)
    assert vars(thing)["__doc__"] if inspect.isclass(thing) else thing.__doc__
    for method, function in vars(thing).items():
        if inspect.isfunction(function) and not method.startswith("_"):
            assert function.__doc__, f"{name}.{method}"


def test_public_names_are_the_designs():
    assert public(attn_jax).keys() >= {
        *("Dot", "ScaledDot", "Cosine", "Bilinear", "Additive", "Kernel"),
        *("Bias", "RelativeBias", "Alibi", "SoftCap", "chain"),
        *("Causal", "Window", "Padding", "Segments", "Prefix", "Dense"),
        *("Softmax", "Sparsemax", "Entmax", "Sigmoid"),
        *("softmax", "sparsemax", "entmax15", "entmax", "sigmoid"),
        *("attention", "attention_weights", "attention_and_logsumexp", "merge", "Dropout"),
    }


@pytest.mark.parametrize(
    ("slot", "module"),
    [
        ("score", "scores"),
        ("score_mod", "score_mods"),
        ("mask", "masks"),
        ("normalizer", "normalizers"),
    ],
)
def test_every_member_has_a_row(slot, module):
    exported = {
        thing
        for thing in public(attn_jax).values()
        if inspect.isclass(thing) and thing.__module__ == f"attn_jax.{module}"
    }
    assert exported
    assert exported <= {type(member.slot()) for member in SLOTS[slot]}


def test_every_kernel_has_a_row():
    """Kernels are the module's functions of u."""
    functions = {n for n, f in public(kernels).items() if n != "of_squared_distance"}
    assert functions == {row.name for row in KERNELS}


def test_import_is_light():
    """`import attn_jax` brings JAX and nothing that only training, plots or experiments need."""
    heavy = ["flax", "optax", "orbax", "grain", "matplotlib", "rich", "scipy.stats", "tyro"]
    heavy += ["tokenizers", "sacrebleu", "babel"]
    code = f"import sys, attn_jax; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    assert run.stdout.strip() == "[]"
