# Every target works from any folder (make -C …, make -f …) and installs what it needs; see `make help`.
ROOT := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))
VENV ?= .venv
# What `make test`, the benchmarks and the site need on top of the broker itself; `fast` is the event loop of chapter 07.
EXTRAS ?= dev,docs,fast,spark
# More arguments for pytest: make chapter-01 ARGS=--mine
ARGS ?=
# How many seeds `make simulate` runs, and in which worlds.
SEEDS ?= 1000
# What `make test-kafka` runs.
TESTS ?= $(patsubst $(ROOT)/%,%,$(wildcard $(ROOT)/final/tests/test_spark_*.py $(ROOT)/final/tests/test_pipelines_*.py)) tests/java/check_spark.py
# How many faults `make chaos` causes, how many copies `make chaos-transactions` makes, and how many kills `make
# chaos-spark` plays.
CYCLES ?= 20
ROUNDS ?= 20
KILLS ?= 51
# How many tests run at once. Most tests of a cluster wait for elections and timeouts, so there are two workers more than
# there are cores.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
WORLDS ?= replication_world raft_world controller_world groups_world transactions_world
export VENV PYTHON NO_SETUP

IN := cd "$(ROOT)" &&
PY := $(IN) "$(VENV)/bin/python"

NUMBERS := 01 02 03 04 05 06 07
folder = $(notdir $(firstword $(wildcard $(ROOT)/chapters/$(1)-*)))
# A quick run is for testing the commands: its figures mean nothing, so they do not replace those in docs/.
is_quick = $(filter-out 0,$(MINIBROKER_QUICK))
PEERS = $(if $(is_quick),build/figures/peers,docs/peers)
figures = $(if $(is_quick),build/figures/$(call folder,$(1)),docs/chapters/$(call folder,$(1))/figures)

.DEFAULT_GOAL := help
.PHONY: help setup setup-spark setup-dev run test test-java test-kafka lint demo bench docs site clean
.PHONY: $(NUMBERS:%=chapter-%) $(NUMBERS:%=bench-%)
.PHONY: simulate chaos chaos-transactions chaos-spark bench-spark bench-peers

help: ## this list
	@sed -n 's/^\([a-z0-9-][a-z0-9 -]*\):.*## \(.*\)/\1\t\2/p; s/^## \(.*\): \(.*\)/\1\t\2/p' "$(ROOT)/Makefile" \
		| awk -F '\t' '{ printf "  make %-20s %s\n", $$1, $$2 }'

setup: ## .venv with the broker and its command line: seconds
	@sh "$(ROOT)/final/setup.sh"

setup-spark: ## the same .venv with Spark, for format("minibroker") and `minibroker pipeline`
	@sh "$(ROOT)/final/setup.sh" spark

setup-dev: ## the same .venv with all that tests, benchmarks and the site need
	@sh "$(ROOT)/final/setup.sh" "$(EXTRAS)"

test: lint ## lint, then the whole test suite
	$(PY) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

lint: setup-dev ## ruff, mypy --strict, import-linter
	@$(IN) found=$$(find chapters final -path '*/minibroker/__init__.py') && test -z "$$found" \
		|| { echo "lint: $$found must not exist: minibroker is a namespace package" >&2; exit 1; }
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(IN) MYPY_NUM_WORKERS=auto "$(VENV)/bin/python" -m mypy
	$(IN) "$(VENV)/bin/lint-imports" --no-logo

test-java: setup-dev ## Kafka's own log, tools and client against our files and nodes, where Maven and Java 17 are
	$(PY) tests/java/run.py test-java $(ARGS)

test-kafka: setup-dev ## the Spark tests on Apache Kafka instead of our broker, where Maven and Java 17 are; TESTS=… others
	$(PY) tests/java/run.py test-kafka $(TESTS) $(ARGS)

## chapter-01 to 07: that chapter's tests; ARGS=--mine tests your own code
$(NUMBERS:%=chapter-%): chapter-%: setup-dev
	$(PY) -m pytest chapters/$(call folder,$*)/tests $(ARGS)

bench: ## the benchmarks of every chapter, one after the other
	@for n in $(NUMBERS); do $(MAKE) --no-print-directory -f "$(ROOT)/Makefile" bench-$$n || exit; done

## bench-01 to 07: that chapter's benchmarks; figures into docs/
$(NUMBERS:%=bench-%): bench-%: setup-dev
	$(PY) -m minibroker.bench chapters/$(call folder,$*)/bench --out $(call figures,$*)

docs: setup-dev ## serve the site, rebuilt on every change
	$(IN) NO_MKDOCS_2_WARNING=1 "$(VENV)/bin/python" -m mkdocs serve

site: setup-dev ## build the site into site/, warnings are errors
	$(IN) NO_MKDOCS_2_WARNING=1 "$(VENV)/bin/python" -m mkdocs build --strict

clean: ## remove what was built; .venv, data and workspace stay
	$(IN) rm -rf __pycache__ site dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	$(IN) find chapters final tests -name __pycache__ -type d -exec rm -rf {} +

run: setup ## one node on 127.0.0.1:9092, data in ./data; Ctrl-C stops it
	@$(IN) exec "$(VENV)/bin/minibroker" serve --data data $(ARGS)

simulate: setup-dev ## seeded faults in virtual time on all cores: SEEDS=N (1000), WORLDS=… (all)
	@$(IN) export PYTHONPATH="chapters/$(call folder,04)/tests:chapters/$(call folder,05)/tests:chapters/$(call folder,06)/tests" && for world in $(WORLDS); do \
		"$(VENV)/bin/python" -m minibroker.simulation $$world --seeds $(SEEDS) $(ARGS) || exit; done

chaos: setup-dev ## nodes, disks, links and clients fail under load: CYCLES=N (20), ARGS="--scenario NAME", ARGS=--list
	$(PY) tests/chaos.py --cycles $(CYCLES) $(ARGS)

chaos-transactions: setup-dev ## a copy in transactions while nodes, links and copiers fail: ROUNDS=N (20), ARGS=--list
	$(PY) tests/chaos_transactions.py --rounds $(ROUNDS) $(ARGS)

# One table of all rows, after the benchmarks that were chosen; bars that are missed do not keep it from being written.
bench-peers: setup-dev ## beside Apache Kafka and others, up to an hour: ARGS="--only NAME" for one row
	$(PY) -m minibroker.bench final/peers --repeats $(if $(is_quick),1,5) --out $(PEERS) $(ARGS); met=$$?; \
		"$(VENV)/bin/python" final/peers/page.py $(PEERS) $(if $(is_quick),,README.md docs/index.md docs/peers.md) && exit $$met

demo: setup-spark ## three nodes, orders, a Spark pipeline, two kills, an audit: two minutes, with QUICK=1 less than one
	@$(IN) exec "$(VENV)/bin/python" -m minibroker.cli.demo $(if $(filter-out 0,$(QUICK)),--quick)

chaos-spark: setup-dev ## Spark copies exactly once while workers, drivers, executors and brokers die: KILLS=N (51), ARGS=--list
	$(PY) tests/chaos_spark.py --kills $(KILLS) $(ARGS)
	$(if $(ARGS),,$(IN) MINIBROKER_WITH_ORDERS=1 "$(VENV)/bin/python" -m pytest -q final/tests/test_pipelines_kill.py tests/java/check_masters.py)

# Each query takes a second or so, so there are fewer rounds than elsewhere.
bench-spark: setup-dev ## the Spark connector beside others, its codec, its triggers; figures into docs/
	$(PY) -m minibroker.bench final/bench --repeats $(if $(is_quick),1,3) \
		--out $(if $(is_quick),build/figures/spark,docs/reference/figures)
