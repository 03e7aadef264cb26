# Everything sets itself up: a virtual environment in .venv, the pinned packages, the inspector's bundle.
# `make` lists the targets. Another interpreter: `make PYTHON=python3.12 test`.

PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2
DEMO    ?= open
BENCH   ?=
FAULTS  ?=
DIVERGENCES ?=
PEERS   ?=
ZOO     ?=
FUZZ    ?=
SOAK    ?=
MINUTES ?= 5
PYTEST_ARGS ?=

BIN := $(VENV)/bin
# Python compiles what it imports, once; compiling all that is installed would take half of the time
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt
NOTEBOOK := notebooks/01_first_look.ipynb
# Jupyter refuses to run as root unless told to
ALLOW_ROOT := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)
# what an installation is made from; a newer file means: install again (which builds the bundle as well)
SETTINGS := pyproject.toml constraints.txt hatch_build.py
FRONTEND := $(shell find probe_nb/view/frontend -name node_modules -prune -o -type f -print 2>/dev/null)

.NOTPARALLEL:
.PHONY: help demo test test-npu-wheel lint frontend-test chromium msprobe docs wheel packages binder-check bench faults divergences peers zoo fuzz storm soak clean dev

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.demo-ready ## open the first notebook in JupyterLab; DEMO=run executes it into build/ instead
ifeq ($(DEMO),run)
	$(BIN)/jupyter nbconvert --to html --execute --ExecutePreprocessor.store_widget_state=False \
	    --output-dir build $(NOTEBOOK)
else
	$(BIN)/jupyter lab $(ALLOW_ROOT) --LabApp.default_url=/lab/tree/$(NOTEBOOK)
endif

test: chromium msprobe lint frontend-test ## run every check: lint, types, import layers, frontend, pytest
	OMP_NUM_THREADS=1 PYTHONFAULTHANDLER=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

test-npu-wheel: dev ## what happens where the real torch_npu is installed without an NPU (downloads it)
	rm -rf build/torch_npu
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --target build/torch_npu \
	    "torch_npu==$$($(BIN)/python -c 'import torch; print(torch.__version__.partition("+")[0])')"
	PROBE_NB_TORCH_NPU=$(CURDIR)/build/torch_npu $(BIN)/python -m pytest tests/device/test_torch_npu_wheel.py

lint: dev ## ruff, formatting, mypy, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

frontend-test: dev ## the inspector's own types and tests
	$(BIN)/python hatch_build.py test

docs: dev ## the documentation as a site in build/docs; a warning is an error
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet \
	    -c docs/site -d build/docs-read . build/docs
	@echo "build/docs/index.html"

wheel: dev ## build dist/*.whl and dist/*.tar.gz, bundle included
	rm -rf dist
	$(BIN)/python -m build

packages: dev ## install the wheel into empty environments, with each Python that is here, and read runs without torch
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.packages

binder-check: dev chromium ## build the environment of binder/ in a folder, and run the first notebook in Chromium
	$(BIN)/python -m tools.binder_check

bench: dev ## measure the cost of watching; BENCH="..." is passed on
	$(BIN)/python -m benchmarks $(BENCH)

faults: dev ## plant faults in small models, and see what is reported first; FAULTS="..." is passed on
	$(BIN)/python -m benchmarks.faults $(FAULTS)

divergences: dev ## plant divergences in one of two runs, and see what is named; DIVERGENCES="..." is passed on
	$(BIN)/python -m benchmarks.divergences $(DIVERGENCES)

# each package in an environment of its own, in build/peers: they patch torch, or bring a gigabyte
peers: dev ## ask five other packages the same questions, and write docs/peers.md; PEERS="..." is passed on
	$(BIN)/python -m benchmarks.peers $(PEERS)

zoo: dev ## watch every architecture of the zoo and write docs/zoo.md; ZOO="bert nn.Linear-*" some, without the page
	$(BIN)/python -m tools.zoo $(ZOO)

fuzz: dev ## give every reader spoiled files for MINUTES, others each time; FUZZ="run dump" some readers
	$(BIN)/python -m tools.fuzz $(FUZZ) --minutes $(MINUTES)

storm: dev ## press Ctrl-C at random for MINUTES in all, into everything that writes or reads
	PROBE_NB_STORM=$$(( $(MINUTES) * 60 / 9 )) PROBE_NB_STORM_SEED=$$$$ \
	    $(BIN)/python -m pytest tests/contract/test_storm.py --timeout 3600

soak: dev ## train 20,000 steps with the inspector open, and see memory stay flat; SOAK="--steps 500" some
	$(BIN)/python -m benchmarks.soak $(SOAK)

clean: ## remove everything that was built or installed here
	rm -rf $(VENV) build dist probe_nb/view/static probe_nb/view/frontend/node_modules
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

chromium: dev
	$(BIN)/python tools/chromium.py

# in an environment of its own, build/msprobe: importing it patches torch
msprobe: dev
	$(BIN)/python tools/msprobe.py

dev: $(VENV)/.dev-ready ## install the package, editable, with every tool
# Node.js as a Python package, where the machine has none
	@need=$$($(BIN)/python hatch_build.py requirements) && [ -z "$$need" ] || $(PIP) "$$need"
	@$(BIN)/python hatch_build.py

$(VENV)/.demo-ready: $(SETTINGS) $(FRONTEND) | $(BIN)/python
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.dev-ready: $(SETTINGS) | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || \
	    { echo "$(PYTHON) is not on PATH; name a Python with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "probe_nb needs Python 3.10 or newer, and $(PYTHON) is older; name one with make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
