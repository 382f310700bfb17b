# make check   lint, types, pure tests: under 20 s once the venv is there
# make test    everything, with real Ray clusters
# make chaos   brokers, drivers, nodes and the GCS are killed while work runs; then nothing may be lost, doubled or
#              leaked, and nobody may hang. SEED=2 KILLS=20 GCS_RESTARTS=2 make chaos: another run, a shorter one
# make soak    the memory of the broker and its store over 10,000 turns
# make demo    the whole of it on this machine: two teams, one preemption
# make docs    the manual as a site in site/, strict: a dead link is an error. To read it: python3 -m http.server -d site
# make bench   what decisions cost, in a table; make bench ARGS="--only engine.turns --json FILE": a part, also as JSON
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed

.PHONY: check lint types pure test ray chaos crashes soak demo docs bench clean

check: lint types pure

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

pure: $(STAMP)
	$(BIN)/python -m pytest -q -n auto -m "not ray" --ignore tests/ray

ray: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "ray and not chaos"

# The pure tests play more random histories here than in `make check`, and die more often. Those with Ray mostly wait:
# two modules at a time, the longest first, each with clusters of its own.
test: $(STAMP)
	RAYPOOL_HISTORIES=30 RAYPOOL_CRASHES=5 $(BIN)/python -m pytest -q -n auto -m "not ray" --ignore tests/ray
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "ray and not chaos"

# A short storm first: what is broken shows in minutes.
chaos: soak crashes
	$(BIN)/python -m pytest -q -m chaos tests/chaos/test_real.py
	$(BIN)/python -m tests.chaos.real

# At every point of ten stories the process dies, before and after each effect: thousands, in virtual time.
crashes: $(STAMP)
	RAYPOOL_CRASHES=all $(BIN)/python -m pytest -q -n auto --timeout 3000 tests/chaos/test_crash_points.py

soak: $(STAMP)
	$(BIN)/python -m tests.chaos.soak

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# Not --quiet: mkdocs counts only the warnings that it shows, and --strict would see none.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@
