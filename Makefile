# Targets that need it make .venv first. Only Python 3.11 or newer is required.
PYTHON ?= python3
VENV   := .venv
RESUME ?= --resume
BIN    := $(VENV)/bin
PIN    := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11

.DEFAULT_GOAL := help
.PHONY: help demo lint test check docs protos bench bench-all quality lab lock clean dist torture soak compose systemd integrations

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(VENV)/.ready: pyproject.toml requirements.txt requirements-uv.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements-uv.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --compile-bytecode --require-hashes -r requirements.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --no-deps --no-build-isolation -e .
	@touch $@

demo: $(VENV)/.ready  ## Train a federation of real processes, forget one client and show the result
	$(BIN)/puf-lab demo

lint: $(VENV)/.ready  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint  ## Check style and types, and run every test
	$(BIN)/pytest -n 2

check: lint  ## Check style and types, and run the fast tests
	$(BIN)/pytest -n 2 -m "not e2e"

docs: $(VENV)/.ready  ## Build the documentation in docs/_build/html; warnings are errors, no network is used
	$(BIN)/sphinx-build -q -E -n -W --keep-going -c docs -b html . docs/_build/html
	@echo "open docs/_build/html/index.html"

torture: $(VENV)/.ready  ## Kill, pause, attack and simulate for hours; goes on where it stopped; RESUME= starts again
	$(BIN)/python -m tests.fuzz $(RESUME)
	$(BIN)/python -m tests.unsynced $(RESUME)
	$(BIN)/python -m tests.torture $(RESUME)

soak: $(VENV)/.ready  ## Run a simulated day of 1,000 clients and several hundred real rounds; memory must not grow
	$(BIN)/python -m tests.soak

quality: $(VENV)/.ready  ## Measure forgetting in ten settings against its goals; takes hours; DATA=DIR has CIFAR-100
	$(BIN)/puf-lab quality --executor pool $(if $(DATA),--data-dir $(DATA))

lab: $(VENV)/.ready  ## Compare the methods on digits: results and report in runs/
	$(BIN)/puf-lab run digits
	$(BIN)/puf-lab report

bench: $(VENV)/.ready  ## Measure speed and memory against this machine's limits and against Flower
	$(BIN)/puf-lab bench

bench-all: $(VENV)/.ready  ## The same, also against NVIDIA FLARE, which takes long to install
	$(BIN)/puf-lab bench --all

dist: $(VENV)/.ready  ## Build sdist and wheel in dist/, install the wheel in a new environment and run the demo from it
	$(BIN)/python deploy/try_dist.py

# The frameworks have other versions of our libraries: each has an environment of its own.
.venv-%/.ready: integrations/%/requirements.txt pyproject.toml $(VENV)/.ready
	$(PYTHON) -m venv .venv-$*
	VIRTUAL_ENV=.venv-$* $(BIN)/uv pip install --compile-bytecode --require-hashes -r $<
	VIRTUAL_ENV=.venv-$* $(BIN)/uv pip install --no-deps --no-build-isolation -e .
	@touch $@

integrations: .venv-flower/.ready .venv-flare/.ready .venv-hf/.ready .venv-tracking/.ready  ## Run PUF with Flower, NVIDIA FLARE, Hugging Face, MLflow and W&B, in environments of their own
	$(BIN)/python -m pytest integrations/tests -o timeout=1500 --durations=20

compose:  ## Run a federation in containers with monitoring, and the commands of the pages; needs a Docker engine
	$(PYTHON) deploy/try_compose.py --monitoring --own-certificates --postgres
	$(PYTHON) deploy/try_pages.py

systemd:  ## Run the systemd units in a container; needs a Docker engine
	$(PYTHON) deploy/try_systemd.py

protos: $(VENV)/.ready  ## Regenerate the committed stubs from protos/
	$(BIN)/python protos/generate.py common/puf_common/v1

lock: $(VENV)/.ready  ## Pin names, versions and hashes in all requirements files
	$(PIN) --extra train --extra dashboard --extra tensorboard --extra otel --extra postgres --extra s3 --extra lab --extra dev -o requirements.txt pyproject.toml
	$(PIN) --extra dashboard --extra postgres --extra s3 --constraints requirements.txt -o deploy/docker/requirements.txt pyproject.toml
	echo hatchling | $(PIN) --constraints requirements.txt -o deploy/docker/build-requirements.txt -
	$(PIN) --extra flower -o integrations/flower/requirements.txt pyproject.toml integrations/flower/requirements.in
	$(PIN) --extra flare -o integrations/flare/requirements.txt pyproject.toml integrations/flare/requirements.in
	$(PIN) --extra train --extra hf --constraints requirements.txt -o integrations/hf/requirements.txt pyproject.toml integrations/hf/requirements.in
	$(PIN) --extra mlflow --extra wandb -o integrations/tracking/requirements.txt pyproject.toml integrations/tracking/requirements.in
	echo uv | $(PIN) -o requirements-uv.txt -

clean:  ## Remove the files that other targets made
	rm -rf $(VENV) .venv-flower .venv-flare .venv-hf .venv-tracking dist runs docs/_build .pytest_cache .mypy_cache .ruff_cache
