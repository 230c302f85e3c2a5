PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
INSTALLED_DEV := .venv/.installed-dev
DEMO := runs/demo

.PHONY: demo test install lint reports
.DEFAULT_GOAL := install

install: $(INSTALLED)

# A federation of four hospitals with drawn images, in FLARE's simulator: scores of every site at the end.
demo: $(INSTALLED)
	rm -rf $(DEMO)
	$(BIN)/grandrounds simulate fedperl --engine flare --sites 4 --threads 4 --workspace $(DEMO)

test: $(INSTALLED_DEV)
	$(BIN)/pytest

REPORTED := local_lower fedavg_lower ssfl fedmatch_pa t2_pa fedavg_upper

# Reports from the committed results of the benchmarks.
reports: $(INSTALLED)
	$(BIN)/grandrounds report $(wildcard $(foreach m,$(REPORTED),benchmarks/fedperl_ham10000/results/$(m)_[0-9].json)) \
		--out runs/reports/fedperl_ham10000 --title "FedPerl on HAM10000, ten sites" --model own

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check custom tests benchmarks
	$(BIN)/ruff format --check custom tests benchmarks
	$(BIN)/mypy

.venv/bin/python:
	$(PYTHON) -m venv .venv

$(INSTALLED): requirements.txt pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --requirement requirements.txt --editable .
	touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --requirement requirements.txt --editable '.[dev]'
	touch $@
