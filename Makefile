# Two commands, each complete on a fresh machine with Python 3.11:
#   make train [ARGS="--flag=value ..."]   sets up, trains on embedded data
#   make test  [ARGS="pytest arguments"]   sets up, runs the tests
# And: make check (the tests that are not marked slow), make notebook (JupyterLab), make tracking (MLflow, Weights & Biases), make image (a container's), make site (the documents, into site/), make nvflare (a federation of NVFlare on this machine), make results (tables and figures of the documents), make audit (lower bounds of epsilon of all mechanisms).

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
VENV := .venv
RUN := $(VENV)/bin/python
# A file's tests share contexts, so they stay in one process.
PARALLEL ?= --numprocesses=auto --maxprocesses=4 --dist=loadfile --no-loadscope-reorder
DOCS := .venv-docs
READY := $(VENV)/.ready-$(shell sha256sum requirements.txt | cut -c1-16)
# What stands beside what the product needs: Ray and trackers, which only the tests
# install by themselves, and JupyterLab.
EXTRA_READY = $(VENV)/.$(1)-$(shell cat requirements.txt requirements-$(1).txt | sha256sum | cut -c1-16)
RAY_READY := $(call EXTRA_READY,ray)
TRACKING_READY := $(call EXTRA_READY,tracking)
NOTEBOOK_READY := $(call EXTRA_READY,notebook)
NVFLARE := .venv-nvflare
NVFLARE_READY := $(NVFLARE)/.ready-$(shell sha256sum requirements-nvflare.txt | cut -c1-16)
DOCS_READY := $(DOCS)/.ready-$(shell sha256sum requirements-docs.txt | cut -c1-16)

.PHONY: train test check nvflare notebook tracking image results audit lock clean setup site

train: $(READY)
	@$(RUN) -m tff_pipelines.train $(ARGS)

test: $(RAY_READY) $(TRACKING_READY)
	@# In two parts: workers keep what TensorFlow compiled, gigabytes of it.
	@$(if $(ARGS),$(RUN) -m pytest $(PARALLEL) $(ARGS),$(RUN) -m pytest $(PARALLEL) tests/aggregators; \
	  first=$$?; $(RUN) -m pytest $(PARALLEL) --ignore=tests/aggregators && exit $$first)

check: $(RAY_READY) $(TRACKING_READY)
	@$(RUN) -m pytest $(PARALLEL) -m "not slow" $(ARGS)

notebook: $(NOTEBOOK_READY)
	@$(RUN) -m jupyterlab $(ARGS) examples/tutorial.ipynb

tracking: $(TRACKING_READY)

# An image with all that programs need, for the user who builds it (docs/tutorial.md).
image:
	docker build --platform=linux/amd64 --build-arg=UID=$$(id -u) --build-arg=GID=$$(id -g) --file=deploy/Dockerfile --tag=private-tff-pipelines .

# Tables and figures of the documents, again, into out/results: some hours, in as many
# pieces as it takes. DATA_DIR=FOLDER of the data files, ONLY=voting,emnist/none for some
# rows, ARGS=--help for more.
results: $(READY)
	@$(RUN) -m benchmarks.results $(if $(DATA_DIR),--data_dir="$(DATA_DIR)") $(if $(ONLY),--only="$(ONLY)") $(ARGS)

# Lower bounds of epsilon, of single releases of every mechanism: some minutes.
audit: $(READY)
	@$(RUN) -m tff_pipelines.audit $(ARGS)

# NVFlare's server, a helper and five sites with digits, as processes of this machine; for
# hospitals ARGS="--case=hearts --data_dir=FOLDER" (docs/nvflare.md).
nvflare: $(NVFLARE_READY) $(READY)
	@$(RUN) -m benchmarks.nvflare --nvflare=$(NVFLARE)/bin/python --folder=out/nvflare $(ARGS)

$(NVFLARE_READY): requirements-nvflare.txt
	@test -x $(NVFLARE)/bin/python || $(PYTHON) -m venv $(NVFLARE)
	$(NVFLARE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r requirements-nvflare.txt
	@rm -f $(NVFLARE)/.ready-*
	@touch $@

# The documents. The API is read from source, and fields of settings from the project.
site: $(DOCS_READY) $(READY)
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict --clean
	@echo site/index.html

$(DOCS_READY): requirements-docs.txt
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r requirements-docs.txt
	@rm -f $(DOCS)/.ready-*
	@touch $@

setup: $(READY)

# Versions and hashes are in requirements.txt, complete; nothing is resolved.
$(READY): requirements.txt
	@$(PYTHON) -c 'import sys, tff_pipelines as t; sys.exit(t.unfit() and f"error: {t.unfit()}; make PYTHON=/path/to/python3.11 names another" or 0)'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r requirements.txt
	@rm -f $(VENV)/.ready-*
	@touch $@

$(RAY_READY) $(TRACKING_READY) $(NOTEBOOK_READY): EXTRA = $(firstword $(subst -, ,$*))
$(RAY_READY) $(TRACKING_READY) $(NOTEBOOK_READY): $(VENV)/.%: $(READY)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r requirements-$(EXTRA).txt
	@rm -f $(VENV)/.$(EXTRA)-*
	@touch $@

# Renews the lock; needs uv. The overrides are what makes TFF 0.87 installable.
lock:
	uv pip compile requirements.in --override requirements-overrides.txt --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_31 --only-binary :all: --no-header --upgrade -o requirements.txt

clean:
	rm -rf $(VENV) $(DOCS) $(NVFLARE) site build *.egg-info .pytest_cache .hypothesis
