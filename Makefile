# Needs make and Python 3.11 or newer; everything else comes with `make install`.
# A row of the help: target, two signs, what it does.

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3.11 python3; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The tests start hundreds of processes. Without stored bytecode, each one compiles all modules again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test tests test-compiled lint kernels bounds compat fuzz crash failover controlled spark brokers hang crowd states sweeps sim ship bench docs packages lock clean

help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv with everything that is needed, from locked requirements.

$(INSTALLED): requirements/wheelmq.txt pyproject.toml client/pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found: make install PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, and $(PYTHON) is older or does not start"; exit 1; }
	@echo "Making $(VENV), 1.6 GB: Spark, Java, Numba and the tools of the tests. It takes a minute or two, once."
	@echo "1 of 3: an environment for $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@echo "2 of 3: the $$(grep -c '==' requirements/wheelmq.txt) packages of requirements/wheelmq.txt, fetched and unpacked; pip is silent meanwhile"
	@$(PIP) install --require-hashes -r requirements/wheelmq.txt
	@echo "3 of 3: WheelMQ itself, and its client"
	@$(PIP) install --no-deps --no-build-isolation -e ./client -e .
	@touch $@

demo: install ## Kill Spark while thousands of messages are due at one millisecond, and show how late each is (1 min).
	@$(BIN)/wheelmq demo

lint: install ## Look at style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 $$($(BIN)/python -m tests.tidy.distributions)

kernels: install ## Compile the kernels for this machine, as whatever needs them first does (1 min).
	$(BIN)/python -c 'from wheelmq.broker.fast.warm import warm; warm(print)'

# The tests wait now and then. Style and types are checked meanwhile, and a failure there shows before that of a test.
test: install ## Look at style and types, and run the tests.
	$(MAKE) --no-print-directory -j 2 lint tests

tests: kernels
	$(BIN)/pytest -n 3
	WHEELMQ_KERNELS=compiled $(BIN)/pytest -n 2 --share $(or $(SHARE),12) tests/unit/delay tests/unit/store tests/unit/broker tests/unit/backup

# The unit, property and simulation tests run the plain code otherwise.
test-compiled: install kernels ## Run them with compiled kernels, with 200 seeds (SEEDS=n FROM=n; 15 min).
	WHEELMQ_KERNELS=compiled $(BIN)/pytest -n 3 tests/unit tests/property tests/fuzz tests/sim
	WHEELMQ_KERNELS=compiled $(BIN)/python -m wheelmq.testing.simulation --seeds $(or $(SEEDS),200) --from $(or $(FROM),0)

bounds: install ## Run the tests of the kernels with every index checked (5 min).
	BOUNDS=whole $(BIN)/pytest tests/twin/test_bounds.py

compat: install ## Run the suites of compat/ against Apache RocketMQ, then against WheelMQ (needs a JDK and Maven; Go, Node).
	$(BIN)/python -m compat.frames --target apache
	$(BIN)/python -m compat.java --target apache
	$(BIN)/python -m compat.java --target apache --client 5.4.0
	$(BIN)/python -m compat.go --target apache --skip
	$(BIN)/python -m compat.node --target apache --skip
	$(BIN)/python -m compat.cpp --target apache --skip
	$(BIN)/python -m compat.mqadmin --target apache
	$(BIN)/python -m compat.mqadmin --target apache --users
	$(BIN)/python -m compat.client --target apache
	$(BIN)/python -m compat.twin
	COMPAT=whole $(BIN)/pytest tests/compat

FUZZ := $(VENV)/fuzz

$(FUZZ)/.installed: requirements/fuzz.txt $(INSTALLED)
	$(PIP) install --upgrade --target $(FUZZ) --require-hashes -r requirements/fuzz.txt
	@touch $@

# What fails is left in fuzz-crashes/; `python -m tests.fuzz --replay FILE` runs it again.
fuzz: install $(FUZZ)/.installed ## Fuzz by coverage what others' bytes reach: each target for SECONDS=60 (9 min).
	PYTHONPATH=$(FUZZ) $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) --crashes fuzz-crashes $(ARGS)

crash: install ## Kill the parts 80 times under load, a broker 600 times under sends, and a copying query and its brokers 200 times each (KILLS=n each, SEED=n; 80 min).
	$(BIN)/python -m tests.crash.run --kills $(or $(KILLS),80) $(if $(SEED),--seed $(SEED)) $(ARGS)
	$(BIN)/python -m tests.crash.sends --kills $(or $(KILLS),300) --flush SYNC_FLUSH $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.crash.sends --kills $(or $(KILLS),300) --flush ASYNC_FLUSH $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.crash.connector --kills $(or $(KILLS),200) $(if $(SEED),--seed $(SEED))

# The store of a run grows, and each broker that comes back reads it. So five runs of 100 are faster than one of 500.
failover: install ## Lose a master, its disk or its network 1,000 times, and promote the slave (RUNS=n LOSSES=n for each mode; 75 min).
	for run in $$(seq $(or $(RUNS),$(if $(SEED),1,5))); do \
		$(BIN)/python -m tests.failover.run --losses $(or $(LOSSES),100) --mode SYNC_MASTER $(if $(SEED),--seed $(SEED)) && \
		$(BIN)/python -m tests.failover.run --losses $(or $(LOSSES),100) --mode ASYNC_MASTER $(if $(SEED),--seed $(SEED)) || exit 1; \
	done
	$(BIN)/python -m tests.failover.queue_model --faults $(or $(LOSSES),100) $(if $(SEED),--seed $(SEED))

controlled: install ## The same with Apache's controller, which elects the slave (LOSSES=n, SEED=n; a JDK and Maven; 15 min).
	$(BIN)/python -m tests.failover.controlled --losses $(or $(LOSSES),200) $(if $(SEED),--seed $(SEED))

ship: install ## Ship stores under kills, power cuts and failing targets, and restore them to random times (SEEDS=n FROM=n LOSSES=n; 40 min).
	WHEELMQ_KERNELS=$(or $(WHEELMQ_KERNELS),plain) $(BIN)/python -m tests.ship --seeds $(or $(SEEDS),300) --from $(or $(FROM),0)
	$(BIN)/python -m tests.crash.shipping --losses $(or $(LOSSES),30) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.crash.shipping --losses 5 --s3 $(if $(SEED),--seed $(SEED))

spark: install ## Run all tests of the pipeline and of the data source on Spark (10 min).
	SPARK=whole $(BIN)/pytest tests/spark

brokers: install ## Run several brokers under one application, two applications, executors of their own (5 min).
	BROKERS=whole $(BIN)/pytest tests/crash/test_brokers.py

hang: install ## Stop the JVM of `wheelmq up` by SIGSTOP: messages stay on time, and it is replaced (2 min).
	$(BIN)/pytest -p no:xdist -s tests/system/hang.py

crowd: install ## Hold 10,000 connections at once, half of them in the midst of a frame (1 min; ulimit -n of 14,000).
	CONNECTIONS=whole $(BIN)/pytest tests/unit/net/test_limits.py

states: install ## Cut the power in the midst of a run and recover 10,000 states of the disk (COUNT=n SEED=n; 10 min).
	$(BIN)/python -m tests.crash.states --count $(or $(COUNT),10000) $(if $(SEED),--seed $(SEED))

sweeps: install ## Damage every file of a store byte by byte, and see what is served then (ARGS="--every 101": some bytes; else hours).
	$(BIN)/python -m tests.crash.sweeps $(ARGS)

SIMULATION = WHEELMQ_KERNELS=$(or $(WHEELMQ_KERNELS),plain) $(BIN)/python -m wheelmq.testing.simulation
CHOSEN = $(if $(STEPS),--steps $(STEPS)) $(if $(SEED),--seed $(SEED) --trace,--seeds $(or $(SEEDS),2000) --from $(or $(FROM),0))
# Compiled, it would take longer to load the kernels than to do without; WHEELMQ_KERNELS=compiled runs them.
sim: install ## Simulate a broker and a cluster under 2,000 seeds each, then planted bugs (SEEDS=n FROM=n, CLUSTER=1, SEED=n STEPS=n: one; 60 min).
	$(if $(CLUSTER),,$(SIMULATION) $(CHOSEN))
	$(if $(or $(CLUSTER),$(if $(SEED),,all)),$(SIMULATION) --cluster $(CHOSEN))
	$(if $(SEED),,$(BIN)/python -m tests.planted)

bench: install ## Measure beside Apache RocketMQ, all in short form (ARGS="lateness --rounds 3": one row in full; bench/README.md).
	$(BIN)/python -m bench $(if $(ARGS),$(ARGS),--short)

SITE := $(VENV)/docs

$(SITE)/.installed: requirements/docs.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found: make docs PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/docs.txt
	@touch $@

# It reads all pages each time, because Sphinx does not repeat the warnings of pages that it read before.
docs: $(SITE)/.installed ## Build the documentation as a site, and check its links: build/site/index.html (15 s).
	$(SITE)/bin/python -m sphinx -c docs -d build/doctrees --fresh-env --fail-on-warning --keep-going --quiet . build/site

# hatchling is in the lock file, and its version is that of the images.
packages: install ## Build the wheels and source archives of WheelMQ and its client, in dist/ (10 s).
	$(BIN)/python -m hatchling build -d dist
	cd client && $(abspath $(BIN))/python -m hatchling build -d ../dist

# The versions that are locked stay as far as they can; UPGRADE=1 takes the newest.
lock: ## Lock the packages of requirements/*.in again (UPGRADE=1: with newer versions).
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(PYTHON) -m venv "$$folder" && \
	"$$folder/bin/python" -m pip --disable-pip-version-check --quiet install pip-tools && \
	cd requirements && for name in wheelmq broker pipeline build fuzz docs; do \
		CUSTOM_COMPILE_COMMAND="make lock" "$$folder/bin/pip-compile" --quiet --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --strip-extras $(if $(UPGRADE),--upgrade) \
		--output-file $$name.txt $$name.in || exit 1; \
	done

clean: ## Remove .venv and what tools leave behind; stores are not touched.
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse fuzz-crashes
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
