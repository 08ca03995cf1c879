# Every target makes its own environment in .venv first; nothing else has to be installed by hand.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test test-slow check format bench results battery swiss-roll biased-pairs mnist colored-mnist clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,experiments]'
	@touch $@

demo: $(VENV)/installed  ## Fit the Swiss roll three ways, print a table, write demo/report.html (some minutes)
	$(BIN)/fewpairs demo

test: $(VENV)/installed  ## Run the test suite
	$(BIN)/pytest --numprocesses 2 --quiet

test-slow: $(VENV)/installed  ## Run the long tests: accuracy on the Swiss roll, memory at 10⁵ × 10⁵
	$(BIN)/pytest -m slow --verbose

check: $(VENV)/installed  ## Lint and complexity, format, types, dead code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vulture

format: $(VENV)/installed  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/installed  ## Time and memory: one step against a plain form, use, whole fits, who is first (half an hour)
	$(BIN)/python benchmarks/speed.py --fits

results: $(VENV)/installed  ## How far default fits get: five draws of the Swiss roll (about an hour)
	$(BIN)/python benchmarks/accuracy.py

battery: $(VENV)/installed  ## Two hundred awkward problems against two yardsticks (hours; goes on where it was stopped)
	$(BIN)/python benchmarks/battery.py

swiss-roll: $(VENV)/installed  ## The paper's Swiss-roll study: results/swiss-roll/report.html (hours on two cores; goes on where it was stopped)
	$(BIN)/fewpairs reproduce swiss-roll

biased-pairs: $(VENV)/installed  ## Pairs from a corner of the population: results/biased-pairs/report.html (hours on two cores; likewise)
	$(BIN)/fewpairs reproduce biased-pairs

mnist: $(VENV)/installed  ## Digits with few labels: results/mnist/report.html (many hours on two cores; likewise)
	$(BIN)/fewpairs reproduce mnist

colored-mnist: $(VENV)/installed  ## Coloured digits by networks and Langevin chains: results/colored-mnist/report.html (likewise)
	$(BIN)/fewpairs reproduce colored-mnist

clean:  ## Remove what the other targets made
	rm -rf $(VENV) demo build .pytest_cache .mypy_cache .ruff_cache
