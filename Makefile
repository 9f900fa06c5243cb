# Two commands do everything: `make demo` and `make test`. Both set up what they need in .venv; so does `make check`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

HEAVY := java or browser or broker
QUICK := not slow and not ($(HEAVY))
# one worker more than there are cores, and never below three: tests of Spark, the browser and the broker go to one
# worker each (tests/conftest.py) and mostly wait
WORKERS := $(shell $(PYTHON) -c "import os; print(max(3, (os.cpu_count() or 2) + 1))")

unexport PYTHONDONTWRITEBYTECODE  # else each worker and each command that a test starts compiles everything again

.PHONY: demo compiled check test coverage bench peers docs lint clean help

help:
	@echo "make demo      fit a model, release a stream, print its account and draw it"
	@echo "make check     lint, types, layers and the quick tests, on all cores"
	@echo "make test      lint, types, layers and every test"
	@echo "make coverage  every test again, with the lines that none of them runs"
	@echo "make docs      the pages as a site with search, in out/site; a broken link fails"
	@echo "make bench     every figure the docs state, measured here in one run"
	@echo "make peers     cross-checks against other packages, each installed apart in .peers (make test needs none)"

INSTALL = $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install -q --disable-pip-version-check

$(VENV)/.demo: pyproject.toml
	$(INSTALL) -e '.[files,plots,serve,attack]'
	@touch $@

$(VENV)/.ready: pyproject.toml
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.docs: pyproject.toml
	$(INSTALL) -e '.[docs,plots]'
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/python examples/demo.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

compiled: $(VENV)/.ready
	@$(BIN)/python -c "from seqveil.core import fast; fast.load(batches=True)"  # once, before several workers would do it

check: lint compiled
	$(BIN)/python -m pytest -n auto -m "$(QUICK)"

test: lint compiled
	@scripts/system_packages
	$(BIN)/python -m pytest -n auto -m "$(QUICK)" --cov=seqveil --cov-report=
	@echo "the quick tests run $$($(BIN)/python -m coverage report --format=total) % of the package's lines"
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "slow or $(HEAVY)"

coverage: lint
	$(BIN)/python -m pytest --cov=seqveil --cov-report=term:skip-covered

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . out/site
	@echo "the site is out/site/index.html"

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks

peers: $(VENV)/.ready
	$(BIN)/python -m peers
	$(BIN)/python -m peers.speed

clean:
	rm -rf $(VENV) .coverage .peers build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis
