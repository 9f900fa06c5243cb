# Two commands do everything: `make demo` and `make test`. Both set up what they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test bench peers lint clean help

help:
	@echo "make demo   fit a model, release a stream, print its account and draw it"
	@echo "make test   lint, types, layers and every test"
	@echo "make bench  every figure the README states, measured here in one run"
	@echo "make peers  cross-checks against other packages, each installed apart in .peers (make test needs none)"

INSTALL = $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install -q --disable-pip-version-check

$(VENV)/.demo: pyproject.toml
	$(INSTALL) -e '.[plots,serve]'
	@touch $@

$(VENV)/.ready: pyproject.toml
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	@$(BIN)/python examples/demo.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	@scripts/system_packages
	@$(BIN)/python -c "from seqveil import fast; fast.load()"  # compiles once, before tests wait for a server's start
	$(BIN)/python -m pytest

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks

peers: $(VENV)/.ready
	$(BIN)/python -m peers
	$(BIN)/python -m peers.speed

clean:
	rm -rf $(VENV) .peers build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis
