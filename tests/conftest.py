"""Strict JAX for every test: float64 on, rank promotion and warnings are errors, one CPU."""

import collections
import functools
import gc
import os
import signal
from pathlib import Path

from tests.compiler import HAS_OLD_EMITTERS

# Nearly all of the suite's time is compiling programs that run once: LLVM's optimizer stays off,
# XLA's own passes on. `XLA_FLAGS= make test` compiles everything as the experiments do.
# The newer emitters take two to three times as long.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    + " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    * HAS_OLD_EMITTERS,
)

import hypothesis
import jax
import jaxtyping
import pytest
from jax._src.interpreters import mlir

# The workers share what they compile, and the next run finds it again.
COMPILED = Path(__file__).parent.parent / ".pytest_cache" / "compiled"
jax.config.update("jax_compilation_cache_dir", str(COMPILED))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

# Each program that a process holds makes the next one slower to compile (a C++ exception is looked
# for in the tables of them all): from time to time they are forgotten, and found again as above.
MOST_PROGRAMS = 1000
programs = collections.Counter()

# JAX makes an MLIR context, with all its dialects, for each program: as much work as the rest of a
# program of one operation. One serves until programs are forgotten.
mlir.make_ir_context = context = functools.cache(mlir.make_ir_context)


def _count(event, seconds, **_):
    programs["held"] += event.endswith("/backend_compile_duration")


jax.monitoring.register_event_duration_secs_listener(_count)


def pytest_runtest_teardown():
    if programs["held"] > MOST_PROGRAMS:
        jax.clear_caches()
        context.cache_clear()
        programs.clear()


jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS") or "cpu")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# What a shell starts in the background inherits an ignored Ctrl-C; tests send some.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "few", derandomize=True, max_examples=20, deadline=None, database=None
)
hypothesis.settings.load_profile("few")


def pytest_collection_finish(session):
    """What is loaded stays: the collector need not look at it again, nor look so often."""
    unstable = [each.nodeid for each in session.items if " at 0x" in each.nodeid]
    assert not unstable, (
        f"an address in a test's name, which differs from worker to worker: {unstable}"
    )
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture
def without_shape_hook():
    """Shape annotations off, as for a user: our own ValueErrors answer a caller's mistake."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
