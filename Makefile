# Two commands, each complete on a fresh machine with Python 3.11:
#   make train [ARGS="--flag=value ..."]   sets up, trains on embedded data
#   make test  [ARGS="pytest arguments"]   sets up, runs the tests
# And: make check (the tests that are not marked slow), make notebook (JupyterLab), make tracking (MLflow, Weights & Biases), make image (a container's), make site (the documents, into site/), make figures, make results-voting, results-fedmd, results-ldp (see below).

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
DOCS_READY := $(DOCS)/.ready-$(shell sha256sum requirements-docs.txt | cut -c1-16)

.PHONY: train test check notebook tracking image figures results-voting results-fedmd results-ldp lock clean setup site

train: $(READY)
	@$(RUN) -m tff_pipelines.train $(ARGS)

test: $(RAY_READY) $(TRACKING_READY)
	@$(RUN) -m pytest $(PARALLEL) $(ARGS)

check: $(RAY_READY) $(TRACKING_READY)
	@$(RUN) -m pytest $(PARALLEL) -m "not slow" $(ARGS)

notebook: $(NOTEBOOK_READY)
	@$(RUN) -m jupyterlab $(ARGS) examples/tutorial.ipynb

tracking: $(TRACKING_READY)

# An image with all that programs need, for the user who builds it (docs/tutorial.md).
image:
	docker build --platform=linux/amd64 --build-arg=UID=$$(id -u) --build-arg=GID=$$(id -g) --file=deploy/Dockerfile --tag=private-tff-pipelines .

# Figures into out/figures: accounting, errors of local mechanisms, distributed mean
# estimation, and FedMD (figures 2 to 4, of the runs of results-fedmd that there are;
# FEDMD="--rounds=10" and the like for runs of other sizes). What is there
# from an earlier run is not computed again.
figures: $(READY)
	@mkdir -p out/figures
	@$(RUN) -m benchmarks.accounting_figures --output=out/figures/accounting.png
	@$(RUN) -m benchmarks.ldp_mechanisms --output=out/figures/ldp_mechanisms.png
	@$(RUN) -m benchmarks.results_fedmd --figures --pictures=out/figures $(FEDMD)
	@$(RUN) -m tff_pipelines.estimate_mean --num_clients=100,1000 --dimension=250 --bits=10,12,14,16,18,20 --epsilon=1,2,3,4,5,6,7,8 --repeats=20 --allow_degenerate --output_dir=out/figures/mean_estimation $(ARGS)

# The tables of docs/voting.md, docs/fedmd.md and docs/ldp_distillation.md, computed again:
#   make results-voting DATA_DIR=folder-of-the-data
# A run that was stopped is resumed, and what is done is kept, in out/.
results-voting results-fedmd results-ldp: results-%: $(READY)
	@test -n "$(DATA_DIR)" || { echo "DATA_DIR must name the folder of the data files" >&2; exit 2; }
	@$(RUN) -m benchmarks.results_$* --data_dir="$(DATA_DIR)" $(ARGS)

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
	rm -rf $(VENV) $(DOCS) site build *.egg-info .pytest_cache .hypothesis
