# Every target sets up .venv by itself; nothing else is needed but Python 3.11 or newer.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PROTOS := $(wildcard protos/puf/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help demo test check docs protos bench bench-all quality lab lock clean torture soak compose systemd

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(VENV)/.ready: pyproject.toml requirements.txt requirements-uv.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements-uv.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --compile-bytecode --require-hashes -r requirements.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --no-deps --no-build-isolation -e .
	@touch $@

demo: $(VENV)/.ready  ## Train a federation of real processes, let one client be forgotten, show what happened
	$(BIN)/puf-lab demo

test: $(VENV)/.ready  ## Lint, type-check and run every test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

check: $(VENV)/.ready  ## Lint, type-check and run the fast tests only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 -m "not e2e"

docs: $(VENV)/.ready  ## Build the documentation in docs/_build/html; warnings are errors, no network is used
	$(BIN)/sphinx-build -q -n -W --keep-going -c docs -b html . docs/_build/html
	@echo "open docs/_build/html/index.html"

torture: $(VENV)/.ready  ## Attack the server, simulate 10,000 histories, break lines, kill at every failpoint and 200 random moments; nothing may be lost
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.torture

soak: $(VENV)/.ready  ## Several hundred rounds with clients coming and going; memory and open files stay flat
	$(BIN)/python -m tests.soak

quality: $(VENV)/.ready  ## Check on the demo's federation and five targets that forgetting reaches its goals
	$(BIN)/puf-lab run demo --goals

lab: $(VENV)/.ready  ## Compare the methods on digits: results and report in runs/
	$(BIN)/puf-lab run digits
	$(BIN)/puf-lab report

bench: $(VENV)/.ready  ## Measure speed, memory and growth against this machine's limits and against Flower
	$(BIN)/puf-lab bench

compose:  ## Try containers for real: train, kill the server twice, forget a replica, watch, paste the pages; needs a Docker engine
	$(PYTHON) deploy/try_compose.py --monitoring --own-certificates
	$(PYTHON) deploy/try_pages.py

systemd:  ## Try the units under a real systemd, in a container; needs a Docker engine
	$(PYTHON) deploy/try_systemd.py

bench-all: $(VENV)/.ready  ## The same with NVIDIA FLARE, which takes long to install
	$(BIN)/puf-lab bench --all

protos: $(VENV)/.ready  ## Regenerate the committed stubs from protos/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Ipuf_common/v1=protos/puf/v1 \
		--python_out=common --pyi_out=common --grpc_python_out=common --mypy_grpc_out=common \
		$(patsubst protos/puf/v1/%,puf_common/v1/%,$(PROTOS))

lock: $(VENV)/.ready  ## Pin all requirements files anew: names, versions and hashes
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--extra train --extra lab --extra dev --python-version 3.11 -o requirements.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--constraints requirements.txt --python-version 3.11 -o deploy/docker/requirements.txt pyproject.toml
	echo hatchling | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--constraints requirements.txt --python-version 3.11 -o deploy/docker/build-requirements.txt -
	echo uv | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--python-version 3.11 -o requirements-uv.txt -

clean:  ## Remove what the other targets made
	rm -rf $(VENV) runs docs/_build .pytest_cache .mypy_cache .ruff_cache
