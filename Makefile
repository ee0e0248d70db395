# The one menu for people. Each target calls the real thing, which can be called without make too.
SHELL := /bin/bash
# Where it is set, each of the many processes of a test run compiles all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := 2023.5.0
NEWEST := 2026.8.0
OTHERS := $(OLDEST) 2024.2.1 2024.8.2 2025.1.0 2025.7.0
RELEASES ?= $(OTHERS) $(NEWEST)
TOOLS := cattrs cronsim rich tzdata pytest>=8 pytest-asyncio>=1 pytest-timeout pytest-xdist pytest-rerunfailures hypothesis trustme

.DEFAULT_GOAL := help
.PHONY: help demo demo-k8s demo-k8s-down node-up node-down install uninstall check test test-oldest test-loop test-long test-chaos test-page chaos test-matrix test-thorough $(OTHERS:%=test-on-%) matrix test-versions test-pythons test-next test-libraries test-k8s test-upgrade lock soak bench bench-idle bench-nodes bench-recommend bench-relief bench-scale bench-upstream mutation docs upstream-tests dist test-dist lint-workflows clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  make %-15s %s\n", $$1, $$2}'

demo: $(VENV)/.demo ## four acts on this machine: workers come and go under a policy; nothing but Python
	$(BIN)/dask-adaptive rehearse manifests/examples/policy.yaml

demo-k8s: $(VENV)/.demo ## the same on a real Kubernetes node (boots one, or uses KUBECONFIG)
	scripts/demo-k8s.sh

demo-k8s-down: ## remove all that demo-k8s made
	scripts/demo-k8s-down.sh

node-up: ## build and boot the local Kubernetes node (root); prints how to reach it
	localnode/packages.sh && localnode/build.sh && localnode/images.sh && localnode/up.sh

node-down: ## stop the local node and leave nothing; its caches stay
	localnode/down.sh --wipe

install: ## upstream's operator and ours on the current node, or on KUBECONFIG
	scripts/install.sh

uninstall: ## take both away again; the CRD stays
	scripts/uninstall.sh

check: $(VENV)/.dev ## lint, types, import contracts, unit and contract tests but the long ones
	$(BIN)/ruff check && $(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/sync_chart.py --check
	scripts/versions.py --check
	$(BIN)/python -m pytest -q -n 6 -m "not thorough and not long" tests/unit tests/contract

test: ## all tests that need no Kubernetes; two of these run side by side, as much of them is waiting
	+$(MAKE) --no-print-directory -j2 --output-sync=target check test-oldest test-loop test-long test-chaos test-page docs

test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 4 -m "long and not thorough" tests/unit tests/contract

test-oldest: $(VENV)-$(OLDEST)/.test
	$(VENV)-$(OLDEST)/bin/python -m pytest -q -n 3 -m "not thorough" tests/contract

test-loop: $(VENV)/.dev $(VENV)-$(OLDEST)/.test
	$(BIN)/python -m pytest -q -n 5 tests/loop

test-chaos: $(VENV)/.dev
	$(BIN)/python -m pytest -q -m "not k8s" tests/chaos

test-page: $(VENV)/.dev docs
	$(BIN)/python -m pytest -q tests/page

# Minutes of workers that are killed, on releases that lose a connection in that now and then, and wait for it. Only a wait that took too long is tried
# once more, and the summary says so (RERUN); a result that is lost or wrong is not.
ON_EACH := -q -n 4 -rfER --tb=short --show-capture=stdout --reruns 1 --only-rerun '^(asyncio.*)?TimeoutError'
test-thorough $(OTHERS:%=test-on-%): export GRAPHS := 20000
MATRIX := test-thorough $(OTHERS:%=test-on-%)
test-matrix: $(MATRIX) ## what `make test` leaves out: very many cases, minutes of random work, and all of the agent's contract on the other releases

test-thorough: $(VENV)/.dev $(VENV)-$(OLDEST)/.test $(VENV)-2024.8.2/.test
	$(BIN)/python -m pytest -q -n 4 -m thorough tests/unit tests/contract
	$(BIN)/python -m pytest -q -n 2 tests/loop/test_versions.py

$(OTHERS:%=test-on-%): test-on-%: $(VENV)-%/.test
	$(VENV)-$*/bin/python -m pytest $(ON_EACH) tests/contract

matrix: # the parts of test-matrix, for .ci/run
	@echo $(MATRIX)

test-versions: $(VENV)/.dev ## tests on a real kube-apiserver of each Kubernetes version, and with each dask-kubernetes; makes the tables of versions (VERSIONS, DASK_KUBERNETES)
	scripts/test-versions.sh

test-pythons: $(VENV)/.dev ## clean installations and tests on Python 3.11 to 3.14, of the agent from 3.9 on; makes the tables of versions (PYTHONS, AGENT_PYTHONS)
	scripts/test-pythons.sh

test-next: $(VENV)/.dev ## the newest distributed, dask-kubernetes, kopf and kubernetes on the index: what is new, and whether our tests of them pass (PRE=1, ALWAYS=1)
	scripts/test-next.sh

lock: $(VENV)/.dev ## write requirements.lock, which the image installs (UPGRADE=1: the newest of each)
	scripts/lock.sh

chaos: $(VENV)/.dev ## 1,000 faults of an API server, of schedulers and of the operator, in rounds; then faults in our code, which rounds have to find
	cd tests && ../$(BIN)/python -m chaos --faults 1000 --at-once 4
	cd tests && ../$(BIN)/python -m chaos.mutants

test-libraries: $(VENV)-libraries/.ready ## XGBoost, LightGBM, scikit-learn, xarray, dask-ml and dataframes while a policy scales up and down
	$(VENV)-libraries/bin/python -m pytest -q --durations=0 tests/libraries

test-k8s: $(VENV)/.dev ## tests on a real API server and node (boots them, or uses KUBECONFIG)
	scripts/test-k8s.sh

test-upgrade: $(VENV)/.dev ## from 0.1.0 to this, in the middle of work, on the local node (FROM)
	scripts/test-upgrade.sh

soak: $(VENV)/.dev ## a job goes on while operator, scheduler, API server, etcd, kubelet, pods and nodes are killed: docs/benchmarks/ (MINUTES, SEED, WRITE)
	scripts/soak.sh

bench: $(VENV)/.dev ## what our code costs a scheduler, beside stock, in one run
	scripts/bench.sh

bench-relief: $(RELEASES:%=$(VENV)-bench-%/.ready) $(VENV)-bench/.ready ## each load that we take off a scheduler, beside stock: docs/benchmarks/ (RELEASES, CASES, REPEATS)
	RELEASES="$(RELEASES)" scripts/bench-relief.sh

bench-nodes: $(VENV)-bench/.ready ## node-hours by which worker leaves, on made-up work in simulated time: docs/benchmarks/
	scripts/bench-nodes.sh

bench-idle: $(VENV)-bench/.ready ## what workers cost and how long work waits, by idleTimeout, in simulated time: docs/benchmarks/
	scripts/bench-idle.sh

bench-upstream: $(VENV)/.dev $(VENV)-bench/.ready ## upstream's autoscaler and ours under the same load, on a node with both operators: docs/benchmarks/ (WORKLOADS, REPEATS)
	scripts/bench-upstream.sh

bench-recommend: $(VENV)/.dev ## advice from a recording, and what happens when it is followed: docs/benchmarks/ (WORKLOADS, KUBECONFIG)
	scripts/bench-recommend.sh

mutation: $(VENV)-mutation/.ready ## change the planner in one place at a time, and see whether a unit test notices: docs/benchmarks/
	scripts/mutation.sh

bench-scale: $(VENV)/.dev $(VENV)-bench/.ready ## one operator under 1,000 clusters, and under one of 10,000 workers: docs/benchmarks/ (SIZES)
	scripts/bench-scale.sh

# No --quiet: it hides warnings from --strict.
docs: $(VENV)-docs/.ready ## the documentation as a site, in site/, with warnings as errors
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

upstream-tests: ## dask's or distributed's own tests under the agent (SUITE, RELEASE, SELECTION, DISTRIBUTED_SRC)
	scripts/upstream-tests.sh

dist: $(VENV)-dist/.ready ## a release in dist/: packages, chart, plugin, image, SBOM, notes, checksums, signature (PARTS; docs/howto/release.md)
	$(VENV)-dist/bin/python scripts/dist.py $(PARTS)

test-dist: $(VENV)/.dev $(VENV)-dist/.ready ## a release made twice from one commit is the same; each file of it is used once
	$(BIN)/python -m pytest -q --tb=short tests/dist

lint-workflows: ## .github/workflows by actionlint
	"$$(scripts/go-tool.sh actionlint)" -shellcheck= -pyflakes=

clean: ## remove the virtual environments and caches of this folder
	rm -rf site dist $(VENV) $(VENV)-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.demo: pyproject.toml operator/dask_adaptive_lab/pyproject.toml
	scripts/venv.sh $(VENV) "-e .[lab] -e operator/dask_adaptive_lab" "dask[dataframe]==$(NEWEST) distributed==$(NEWEST)"
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.demo
	scripts/venv.sh $(VENV) "-e .[lab,dev] -e operator/dask_adaptive_lab" "dask[array,dataframe]==$(NEWEST) distributed==$(NEWEST)"
	@touch $@

# The agent's contract on other releases of distributed: no operator there, as in users' images.
# What pandas, numpy and pyarrow these releases work with: their own metadata does not say.
# 2023.5.0 reads the first row of a table where it means the first column since pyarrow 13.
OLD_PINS := pandas<3 pyarrow<20
$(VENV)-$(OLDEST)/.test: OLD_PINS := pandas<2.1 pyarrow<13
$(VENV)-%/.test: pyproject.toml
	scripts/venv.sh $(VENV)-$* "$(TOOLS)" "dask[array,dataframe]==$* distributed==$* $(OLD_PINS) numpy<2"
	@touch $@

# For measurements: the agent's releases, each with a bokeh of its time for the dashboard.
BOKEH_2023.5.0 := bokeh==3.1.1 pandas<2.1
BOKEH_2024.2.1 := bokeh==3.3.4
BOKEH_2024.8.2 := bokeh==3.5.2
BOKEH_2025.1.0 := bokeh==3.6.3
BOKEH_2025.7.0 := bokeh==3.7.3
$(VENV)-bench-%/.ready:
	scripts/venv.sh $(VENV)-bench-$* "dask==$* distributed==$* $(or $(BOKEH_$*),bokeh>=3.1) numpy<2 pandas<3"
	@touch $@

$(VENV)-libraries/.ready: pyproject.toml
	scripts/venv.sh $(VENV)-libraries "-e .[lab] -e operator/dask_adaptive_lab" "dask[array,dataframe]==$(NEWEST) distributed==$(NEWEST)" \
	  "pytest>=8 pytest-asyncio>=1 pytest-timeout" "xgboost-cpu lightgbm scikit-learn xarray flox zarr dask-ml"
	@touch $@

$(VENV)-docs/.ready: pyproject.toml
	scripts/venv.sh $(VENV)-docs "mkdocs>=1.6 mkdocs-material>=9.5"
	@touch $@

# Fixed, because what they write changes with their versions.
$(VENV)-dist/.ready:
	scripts/venv.sh $(VENV)-dist "build==1.6.1 towncrier==26.9.0 uv==0.13.9"
	@touch $@

$(VENV)-mutation/.ready: pyproject.toml
	scripts/venv.sh $(VENV)-mutation "-e .[lab,dev] -e operator/dask_adaptive_lab" "mutmut>=3.8" "dask[dataframe]==$(NEWEST) distributed==$(NEWEST)"
	@touch $@

$(VENV)-bench/.ready: pyproject.toml
	scripts/venv.sh $(VENV)-bench "-e .[lab] -e operator/dask_adaptive_lab"
	@touch $@
