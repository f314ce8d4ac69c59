# `make help` says what there is. Everything is installed into .venv, with the versions of constraints.txt.

SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
RUN := $(VENV)/bin/python
# What builds packages, apart from what develops them.
BUILD := .venv-build
PLUGINS := $(wildcard plugins/*/pyproject.toml)
# The plugins that the demo and the other examples call. The tests install all of them.
DEMO_PLUGINS := udf_aggregates udf_embeddings udf_geo udf_http udf_process
USABLE := import sys; sys.exit(sys.version_info < (3, 11))

# The Python that makes .venv: `make PYTHON=python3.12 ...` chooses another one.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c '$(USABLE)' 2>/dev/null && echo $$python && break; done)

# Spark's workers must run the Python that Spark's driver runs.
export PYSPARK_PYTHON := $(CURDIR)/$(RUN)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Otherwise each of the many processes of the tests compiles the project and its tests again.
unexport PYTHONDONTWRITEBYTECODE

# Worker processes of the tests. Each has one Spark session for all of the files it is given.
WORKERS ?= 2
# Tests without Spark wait more than they compute.
UNIT_WORKERS ?= 4
# Compiling a query or its expressions takes Spark longer than a few rows are worth. Its usual files of checkpoints, for which it
# asks by FileContext, start about five processes each, `readlink` and `chmod`. `make test-all` has all of it, as jobs do, in a
# quarter of the files and in benchmarks.
FILES := org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager
QUICK := --conf spark.ui.enabled=false --conf spark.sql.codegen.wholeStage=false \
	--conf spark.sql.codegen.factoryMode=NO_CODEGEN --conf spark.sql.streaming.checkpointFileManagerClass=$(FILES)
TESTS ?=
# `make test ORDER=8` shuffles the files and the tests in them; the same seed gives the same order.
ORDER ?=
SHUFFLED = $(if $(ORDER),--order=$(ORDER))
# What `make check` runs of them; CI: TEST=test-all.
TEST ?= test
UNIT_TESTS := tests/remote_udf tests/udf_server tests/spark_client tests/packaging/test_imports.py
SUITE ?= all
CASES ?= ../shared/conformance
FUNCTIONS ?=
MUTATE ?=
CACHE ?=
SEED ?= 7
SCALE ?= 1
ONLY ?=
TRIES ?= 100000
MINUTES ?= 20
SEEDS ?= 300
MODE ?= both
ENGINE ?= docker
IMAGE_PLUGINS ?=
export DEMO_INPUT DEMO_COLUMN DEMO_ROWS

.PHONY: help
help: ## this list
	@echo 'make TARGET, where TARGET is one of'
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | \
		while IFS=$$'\t' read -r target text; do printf '  %-15s%s\n' "$$target" "$$text"; done

.PHONY: demo
demo: jdk $(VENV)/.run-stamp ## a PySpark job on real data, timed; DEMO_INPUT=file.csv or .parquet for your own
	@$(RUN) -m examples.demo

.PHONY: test
test: jdk prepared ## the tests but the long ones; TESTS=tests/spark for some of them, ORDER=8 in a random order
	@PYSPARK_SUBMIT_ARGS='$(QUICK) pyspark-shell' \
		$(RUN) -m benchmarks.cpu $(RUN) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'not long' \
		$(if $(TESTS),,--cases=1) --hypothesis-profile=quick $(SHUFFLED) $(TESTS)

.PHONY: test-all
test-all: jdk prepared ## the tests and the long ones; names the slowest
	@PYSPARK_SUBMIT_ARGS='$(QUICK) pyspark-shell' \
		$(RUN) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --as-jobs --durations=40 $(SHUFFLED) $(TESTS)

# Both at once: an installation keeps one core busy.
.PHONY: prepared
prepared:
	@$(MAKE) -s -j 2 $(VENV)/.dev-stamp build/spark.jsa

# What Spark's JVM loads, which then starts with half of the CPU time. A JVM that cannot write it is no failure.
build/spark.jsa: $(VENV)/.run-stamp tests/class_archive.py
	@mkdir -p $(@D)
	@$(RUN) -m tests.class_archive $@ >build/spark-jsa.log 2>&1 || echo 'the tests start Spark without an archive of its classes'

.PHONY: unit
unit: $(VENV)/.dev-stamp ## the fast tests: no Spark, no container, no browser, no process is started
	@$(RUN) -m pytest -q -n $(UNIT_WORKERS) -m 'not slow and not long' --hypothesis-profile=unit $(SHUFFLED) $(UNIT_TESTS)

.PHONY: hooks
hooks: $(VENV)/.dev-stamp ## have git run lint and types before each commit, in this checkout
	@mkdir -p "$$(git rev-parse --git-path hooks)"
	@printf '%s\n' '#!/bin/sh' 'exec make -s lint types' > "$$(git rev-parse --git-path hooks)/pre-commit"
	@chmod +x "$$(git rev-parse --git-path hooks)/pre-commit"

.PHONY: check
check: lint types generated audit $(TEST) ## what must pass before a commit: lint, types, generated, audit, test

.PHONY: lint
lint: $(VENV)/.dev-stamp ## ruff: rules and format
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

.PHONY: types
types: $(VENV)/.dev-stamp ## mypy, strict
	@$(VENV)/bin/mypy

.PHONY: generated
generated: $(VENV)/.dev-stamp ## is the committed code of proto/ what its .proto files say?
	@bash proto/generate.sh --check $(RUN)

.PHONY: audit
audit: $(VENV)/.dev-stamp ## known vulnerabilities of the pinned versions, where their database answers
	@.ci/audit $(RUN)

.PHONY: proto
proto: $(VENV)/.dev-stamp ## generate the code of proto/ anew
	@bash proto/generate.sh $(RUN)

.PHONY: docs
docs: $(VENV)/.dev-stamp ## write the tables of the documentation, and the types of options, from the code
	@$(RUN) -m cogapp -r -I tests/docs docs/*.md proto/remote_udf/option_types.py

.PHONY: site
site: $(VENV)/.dev-stamp ## the documentation as a site, in build/site; nothing is fetched
	@rm -rf build/site
	@$(RUN) -m sphinx -q -W --keep-going -d build/site-doctrees -c docs/site . build/site
	@echo build/site/index.html

.PHONY: monitoring
monitoring: $(VENV)/.dev-stamp ## write the Grafana dashboard, the rules for Kubernetes and the Helm chart again, from deploy/
	@$(RUN) -m deploy

.PHONY: bench
bench: jdk $(VENV)/.dev-stamp ## benchmarks: SUITE=scalar, aggregate, window, process, parquet, peers, growth, limits, planning, plain_sql, cache, batching, fleet, models, http, groups, udfbench or all
	@$(RUN) -m benchmarks --suite $(SUITE)

.PHONY: bench-quick
bench-quick: jdk $(VENV)/.dev-stamp ## three minutes: are ratios as good as the committed ones?
	@$(RUN) -m benchmarks.guard

.PHONY: conformance
conformance: jdk $(VENV)/.dev-stamp ## run case files: CASES=folder FUNCTIONS=file.py, ONLY=pattern, MUTATE=1 to check the judge, CACHE=1 with a cache
	@$(RUN) -m tests.conformance --cases $(CASES) $(if $(FUNCTIONS),--functions $(FUNCTIONS)) \
		--workers $(WORKERS) --only '$(ONLY)' $(if $(MUTATE),--mutate) $(if $(CACHE),--cache)

.PHONY: soak
soak: $(VENV)/.dev-stamp ## mixed load with faults for MINUTES=20, or streams of KEYS=100000; fails if memory, files or threads grow
	@$(RUN) -m tests.chaos.$(if $(KEYS),soak_stream --keys $(KEYS),soak --seed $(SEED)) --minutes $(MINUTES)

.PHONY: fuzz
fuzz: $(VENV)/.dev-stamp ## odd bytes, odd queries, attacks on a server: TRIES=100000; ONLY=12 for one round of attacks
	@$(RUN) -m tests.fuzz --tries $(TRIES) --seed $(SEED) --only '$(ONLY)'

.PHONY: differential
differential: jdk $(VENV)/.dev-stamp ## random queries against Spark's own result: MINUTES=20 SEED=7 ONLY=sql, frame, process or stream, CONNECT=1
	@$(RUN) -m tests.differential --minutes $(MINUTES) --seed $(SEED) --only '$(ONLY)' $(if $(CONNECT),--connect)

.PHONY: chaos
chaos: jdk $(VENV)/.dev-stamp ## faults on purpose, and the rows counted: SEED=7, SCALE=10 for a tenth of the rows
	@$(RUN) -m tests.chaos --seed $(SEED) --scale $(SCALE) --only '$(ONLY)'

.PHONY: sim
sim: $(VENV)/.dev-stamp ## deterministic simulation: SEEDS=10000; SEED=12 MODE=liveness to repeat one; FLEET=1 for a fleet
	@$(if $(FLEET),$(RUN) -m tests.simulation.fleet,$(RUN) -m tests.simulation --seeds $(SEEDS) --mode $(MODE) $(if $(filter command line,$(origin SEED)),--seed $(SEED)))

.PHONY: matrix
matrix: jdk $(VENV)/.dev-stamp ## unit tests and Spark jobs with each supported Python and PySpark: PYTHONS=3.11,3.13 PYSPARKS=4.1.4
	@$(RUN) -m tests.packaging.matrix $(PYTHONS:%=--python %) $(PYSPARKS:%=--pyspark %)

.PHONY: wheels
wheels: $(BUILD)/.stamp ## wheels of the project and of its plugins, in dist/; needs no other environment
	@for project in . $(PLUGINS:%/pyproject.toml=./%); do \
		$(BUILD)/bin/python -m build -w --no-isolation -o dist $$project >/dev/null || exit 1; done
	@ls dist/*.whl

.PHONY: release
release: $(BUILD)/.stamp ## the files of a release, in dist/: tests, wheels, sdists, bill of materials; TEST= if it is tested
	@$(BUILD)/bin/python -m deploy.release --test '$(if $(filter command line,$(origin TEST)),$(TEST),test-all)'

.PHONY: image
image: ## the container image of the server: ENGINE=podman, IMAGE_PLUGINS='./plugins/udf_geo acme-udfs==1.2'
	@$(ENGINE) build -f deploy/container/Dockerfile -t udf-server --build-arg PLUGINS='$(IMAGE_PLUGINS)' \
		--build-arg VERSION="$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' proto/remote_udf/version.py)" \
		--build-arg REVISION="$$(git rev-parse HEAD)" .

.PHONY: container-test
container-test: jdk $(VENV)/.dev-stamp ## build the image with buildah, as root, and run a Spark job against it
	@UDF_CONTAINER_TEST=1 $(RUN) -m pytest -q tests/deploy/test_container.py

.PHONY: clean
clean: ## remove everything that make made, .venv included
	rm -rf $(VENV) $(BUILD) .venv-proto build dist spark-warehouse metastore_db derby.log .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Before anything is installed, so that nobody waits for nothing.
.PHONY: jdk
jdk:
	$(if $(shell bash examples/demo/find_jdk.sh),,$(error Spark needs a JDK, 17 or later: install one \
		(Debian, Ubuntu: apt-get install default-jdk-headless), or set JAVA_HOME))
	@:

# Otherwise pip installs an environment for building each of them.
INSTALL_PLUGINS = $(RUN) -m pip install -q --no-compile -c constraints.txt --no-build-isolation

# What the demo needs; the tests need more. Python compiles the few modules that it imports, pip would compile all.
$(VENV)/.run-stamp: pyproject.toml constraints.txt $(DEMO_PLUGINS:%=plugins/%/pyproject.toml)
	$(if $(PYTHON),,$(error no Python 3.11 or later: install one, or name it: make PYTHON=...))
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV), once'
	@$(RUN) -m pip install -q --no-compile -c constraints.txt hatchling editables -e '.[server,spark,demo]'
	@$(INSTALL_PLUGINS) $(DEMO_PLUGINS:%=-e plugins/%)
	@touch $@

$(BUILD)/.stamp: pyproject.toml constraints.txt
	@test -x $(BUILD)/bin/python || $(PYTHON) -m venv $(BUILD)
	@echo 'installing into $(BUILD), once'
	@$(BUILD)/bin/python -m pip install -q --no-compile -c constraints.txt $$($(PYTHON) -c \
		'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["release"])')
	@touch $@

$(VENV)/.dev-stamp: $(VENV)/.run-stamp $(PLUGINS)
	@$(RUN) -m pip install -q --no-compile -c constraints.txt -e '.[server,spark,demo,dev,tracing]'
	@$(INSTALL_PLUGINS) $(PLUGINS:%/pyproject.toml=-e %)
	@touch $@
