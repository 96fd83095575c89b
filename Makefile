# make demo   set up .venv and run the demos           make test   set up .venv and run the tests
# make lint   ruff and mypy, without changes           make clean  remove .venv and caches
# make docs   build the site into docs/build
# make package   build the wheel, install it in an empty environment, use it
# make test-fast   the slots and dense attention alone, while you edit
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-fast lint docs package clean

demo: $(READY)
	$(BIN)/python -m experiments kernel-regression --n 500
	$(BIN)/python -m experiments date-translation

test: $(READY)
	$(BIN)/python -m pytest -n 2

FAST := house slots kernels scores score_mods masks normalizers attention position_encodings
test-fast: $(READY)
	$(BIN)/python -m pytest -n 2 $(FAST:%=tests/test_%.py) -k "not streaming and not derivatives"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tutorials are run as they are built; a warning is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

$(VENV)/.docs: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

# What is built lies in build/, outside of which the installed package is used.
package:
	rm -rf build/package
	$(PYTHON) -m venv build/package
	build/package/bin/pip wheel --quiet --no-deps --wheel-dir build/package/wheels .
	build/package/bin/pip install --quiet --no-compile build/package/wheels/attn_jax-*.whl
	cd build/package && bin/python -c "import attn_jax, jax; print(attn_jax.__version__, \
	  attn_jax.attention(*[jax.numpy.ones((3, 2))] * 3).shape, attn_jax.__file__)"

# pip compiles no bytecode: of all that it installs, the demo imports a part.
# A Debian Python without its python3-venv package makes no pip in a new environment: its own pip
# fills it then.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "attn_jax needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1)." \
	       "Name another: make $(MAKECMDGOALS) PYTHON=python3.13"; exit 1; }
	@echo "setting up $(VENV) (once; some minutes) …"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	  $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -r requirements.txt
	@touch $@

clean:
	rm -rf $(VENV) build docs/build .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
