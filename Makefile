# Two commands do everything: `make demo` and `make test`. Both set up what they need in .venv; so does `make check`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

HEAVY := java or browser or broker
QUICK := not slow and not ($(HEAVY))

unexport PYTHONDONTWRITEBYTECODE  # else each worker and each command that a test starts compiles everything again

.PHONY: demo compiled check test slow heavy coverage bench peers docs lint clean help

help:
	@echo "make demo      fit a model, release a stream, print its account and draw it"
	@echo "make check     lint, types, layers and the quick tests, on all cores"
	@echo "make test      lint, types, layers and every test"
	@echo "make slow      the slow tests alone; make heavy those of Spark, the browser and the broker"
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
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

compiled: $(VENV)/.ready
	@$(BIN)/python scripts/compile_all.py

check: lint compiled
	$(BIN)/python -m pytest -n auto -m "$(QUICK)"

test: lint compiled
	@scripts/system_packages
	$(BIN)/python -m pytest -n auto -m "$(QUICK)" --cov=seqveil --cov-report=
	@echo "the quick tests run $$($(BIN)/python -m coverage report --format=total) % of the package's lines"
	@echo "the slow tests, and beside them those of Spark, the browser and the broker; each shows what it did at its end"
	@$(MAKE) --no-print-directory -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync) slow heavy

slow: $(VENV)/.ready
	$(BIN)/python -m pytest -n auto -m "slow and not ($(HEAVY))"

# in one process, so that there is one Spark, one browser and one broker at a time; it mostly waits for them
heavy: $(VENV)/.ready
	$(BIN)/python -m pytest -m "$(HEAVY)"

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
