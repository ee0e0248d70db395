# The one menu for people. Each target calls the real thing, which can be called without make too.
# Parts of `make test` and tests that are run now and then: tests/Makefile. Benchmarks: tests/bench/Makefile.
SHELL := /bin/bash
# Where it is set, each of the many processes of a test run compiles all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NEWEST := 2026.8.0
OTHERS := 2023.5.0 2024.2.1 2024.8.2 2025.1.0 2025.7.0
OLDEST := $(firstword $(OTHERS))
LAB := -e .[lab] -e operator/dask_adaptive_lab
TOOLS := cronsim msgspec rich tzdata pytest>=8 pytest-asyncio>=1 pytest-timeout pytest-xdist pytest-rerunfailures hypothesis trustme

.DEFAULT_GOAL := help
.PHONY: help demo demo-k8s demo-k8s-down node-up node-down install uninstall check test test-matrix test-k8s chaos soak upstream-tests bench docs lock dist clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*?## ' Makefile | awk -F ':.*?## ' '{printf "  make %-15s %s\n", $$1, $$2}'
	@echo "  make test-NAME, bench-NAME: 'make -C tests' and 'make -C tests/bench' list them"

demo: $(VENV)/.demo ## four acts on this machine: workers come and go under a policy; nothing but Python
	$(BIN)/dask-adaptive rehearse manifests/examples/policy.yaml

demo-k8s: $(VENV)/.demo ## the same on a real Kubernetes node (boots one, or uses KUBECONFIG)
	scripts/demo-k8s.sh

demo-k8s-down: ## remove all that demo-k8s made
	scripts/demo-k8s.sh down

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

# Environments first: of parts that run side by side, two may need one.
test: $(VENV)/.dev $(VENV)-$(OLDEST)/.test ## all tests that need no Kubernetes; two of these run side by side, as much of them is waiting
	+$(MAKE) --no-print-directory -j2 --output-sync=target check test-oldest test-loop test-long test-chaos test-hostile test-page

MATRIX := test-thorough test-hostile-20000 $(OTHERS:%=test-on-%) test-reports
test-matrix: $(MATRIX) ## what `make test` leaves out: very many cases, minutes of random work, all of the agent's contract on the other releases, and reports of people

test-%:
	+@$(MAKE) --no-print-directory -C tests $*

test-k8s: $(VENV)/.dev ## tests on a real API server and node (boots them, or uses KUBECONFIG)
	scripts/test-k8s.sh

chaos: $(VENV)/.dev ## 1,000 faults of an API server, of schedulers and of the operator, in rounds; then faults in our code, which rounds have to find
	cd tests && ../$(BIN)/python -m chaos --faults 1000 --at-once 4
	cd tests && ../$(BIN)/python -m chaos.mutants

soak: $(VENV)/.dev ## a job goes on while operator, scheduler, API server, etcd, kubelet, pods and nodes are killed: docs/benchmarks/ (MINUTES, SEED, WRITE)
	tests/soak/run.sh

upstream-tests: ## dask's or distributed's own tests under the agent (SUITE, RELEASE, SELECTION, DISTRIBUTED_SRC)
	tests/upstream_suites/run.sh

bench: bench-cost ## what our code costs a scheduler, beside stock, and the operator, in one run

bench-%:
	+@$(MAKE) --no-print-directory -C tests/bench $*

docs: $(VENV)-site/.ready ## the documentation as a site, in site/, with warnings as errors (DOCS_URL, PROJECT_URL: docs/conf.py)
	rm -rf site && $(VENV)-site/bin/sphinx-build -qnW --keep-going -d .cache/doctrees docs site

docs/images/architecture.svg: docs/images/architecture.d2
	$$(scripts/go-tool.sh d2) --layout elk --elk-nodeNodeBetweenLayers 20 --elk-padding "[top=20,left=20,bottom=45,right=20]" \
	  --dark-theme 200 --pad 4 --scale 1 $< $@

lock: $(VENV)/.dev ## write requirements.lock, which the image installs (UPGRADE=1: the newest of each)
	scripts/lock.sh

dist: $(VENV)-dist/.ready ## a release in dist/: packages, chart, plugin, image, SBOM, notes, checksums, signature (PARTS; docs/contributing/release.md)
	$(VENV)-dist/bin/python scripts/dist.py $(PARTS)

clean: ## remove the virtual environments and caches of this folder
	rm -rf site dist $(VENV) $(VENV)-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.demo: pyproject.toml operator/dask_adaptive_lab/pyproject.toml
	scripts/venv.sh $(VENV) "$(LAB)" "dask[dataframe]==$(NEWEST) distributed==$(NEWEST)"
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.demo
	scripts/venv.sh $(VENV) "-e .[dev] $(LAB)" "dask[array,dataframe]==$(NEWEST) distributed==$(NEWEST)"
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
	scripts/venv.sh $(VENV)-libraries "$(LAB)" "dask[array,dataframe]==$(NEWEST) distributed==$(NEWEST)" \
	  "pytest>=8 pytest-asyncio>=1 pytest-timeout" "xgboost-cpu lightgbm scikit-learn xarray flox zarr dask-ml"
	@touch $@

$(VENV)-site/.ready: pyproject.toml
	scripts/venv.sh $(VENV)-site "sphinx>=9 myst-parser>=5 pydata-sphinx-theme>=0.24" "sphinx-copybutton sphinx-design sphinx-external-toc"
	@touch $@

# Fixed, because what they write changes with their versions.
$(VENV)-dist/.ready:
	scripts/venv.sh $(VENV)-dist "build==1.6.1 bump-my-version==1.8.1 towncrier==26.9.0 uv==0.13.9"
	@touch $@

$(VENV)-mutation/.ready: pyproject.toml
	scripts/venv.sh $(VENV)-mutation "-e .[dev] $(LAB)" "mutmut>=3.8" "dask[dataframe]==$(NEWEST) distributed==$(NEWEST)"
	@touch $@
