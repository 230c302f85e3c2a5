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

# A process for each core, each with one thread; a file's tests stay in one process, because they share set-ups.
# The tests that are not long by tests/durations.json. Then the examples in the package's docstrings.
test: $(INSTALLED_DEV)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m 'not long and not slow and not faults and not provisioned and not fuzz and not documentation' \
		--numprocesses logical --dist loadfile --no-loadscope-reorder
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --doctest-modules custom

# Committed results of a benchmark, method by method; the first method is what the others are compared with.
results = $(wildcard $(foreach m,$(2),benchmarks/$(1)/results/$(m)_[0-9].json))
report = $(if $(2),$(BIN)/python -m benchmarks.result_runs $(2) --out runs/reports/$(1) --title $(3),@echo "$(1) has no results yet")

FEDPERL := local_lower fedavg_lower ssfl fedmatch_pa t2_pa fedavg_upper
FEDIRM := $(addprefix lesion_,fedavg_lower fedavg_lower_fifth silent self_training consistency rscfed fedirm fedavg_upper)
FED_ALIGN := $(addprefix devices_,single fed fed_cl fed_align fed_align_cl mix)
UTILITY := infinite_fedavg_none infinite_fedirm_none infinite_fedperl_none eps8_fedavg_record eps2_fedavg_record $(addprefix eps8_,fedperl_site fedirm_site) $(addprefix eps2_,fedperl_site fedirm_site)
MDHFL := $(addprefix symmetric_20_,local_ce local_sce fedmd rhfl rhfl_plus mdhfl_ce mdhfl)

# Reports from the committed results of the benchmarks.
reports: $(INSTALLED)
	$(call report,fedperl_ham10000,$(call results,fedperl_ham10000,$(FEDPERL)),"FedPerl on HAM10000 at ten sites" --model own)
	$(call report,fedirm_ham10000,$(call results,fedirm_ham10000,$(FEDIRM)),"FedIRM on HAM10000: two of ten sites have labels")
	$(call report,fed_align_cl_ham10000,$(call results,fed_align_cl_ham10000,$(FED_ALIGN)),"Fed-Align-CL on HAM10000: four devices")
	$(call report,mdhfl_pbc,$(call results,mdhfl_pbc,$(MDHFL)),"MDH-FL on blood cells: a fifth of the labels is wrong")
	$(call report,privacy_utility,$(call results,privacy_utility,$(UTILITY)),"Utility and privacy on HAM10000")

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check custom tests benchmarks examples
	$(BIN)/ruff format --check custom tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/bin/python:
	$(PYTHON) -m venv .venv

$(INSTALLED): requirements.txt pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --requirement requirements.txt --editable '.[study,pretrained]'
	touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --requirement requirements.txt --editable '.[study,dev]'
	touch $@
