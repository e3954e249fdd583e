# Needs make, a C compiler and Python 3.11 or newer. Everything else goes into .venv.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: demo test test-ci serve test-all lint bench corpus docs site relay-env images sbom clean help

# The first Python that is new enough; PYTHON=... chooses another.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$name && break; done)

BIN := .venv/bin
# Without warnings of setuptools, whose users are other packages.
INSTALL = PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--no-input -c constraints.txt
BENCHMARKS := speed.tune_relax speed.versus robustness.operators robustness.verification
DEMO_SECONDS ?= 240
# Two processes more than two cores: much of each test waits, for processes to start, leases to
# expire, pages to load.
JOBS ?= 4
# Threads that wait for others yield their core, for more processes run than there are cores.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(JOBS) --dist loadscope \
	--no-loadscope-reorder
# Tests start hundreds of processes, which would all compile our modules if none kept the result.
export PYTHONDONTWRITEBYTECODE :=
# Debian's takes four times as long to find and unpack packages.
PIP := 26.3
# Writes the software bill of materials.
CYCLONEDX := 7.5.0
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

demo: .venv/.runtime ## Tune SqueezeNet on this CPU, build it, check it, time it: under eight minutes.
	@$(BIN)/python -m benchmarks.demo --seconds $(DEMO_SECONDS)

# A test that hangs fails after ten minutes; the longest takes two.
test: .venv/.dev .venv/.relay ## Run the tests in JOBS processes: twelve minutes on two cores; ARGS go to pytest.
	$(PYTEST) --timeout=600 $(ARGS)

test-ci: .venv/.dev .venv/.relay ## Run the slow tests of CI: kills, outages, whole services, packages.
	$(PYTEST) -m "in_ci and not gpu" $(ARGS)

serve: .venv/.runtime ## Start the service on this machine; ARGS go to tuner serve.
	@$(BIN)/tuner serve $(ARGS)

test-all: .venv/.dev .venv/.relay ## Run all tests, the slow ones included: hours.
	$(PYTEST) -m "not gpu" $(ARGS)

lint: .venv/.dev ## Check style, types and who may import whom.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.dev ## Run every benchmark, one after the other: hours; versus alone takes three.
	@for name in $(BENCHMARKS); do \
		echo "python -m benchmarks.$$name" >&2; \
		$(BIN)/python -m benchmarks.$$name || exit 1; \
	done

corpus: .venv/.dev ## Run the corpus of networks and write docs/networks.md: an hour and more; ARGS go to it.
	@$(BIN)/python -m benchmarks.corpus $(ARGS)

docs: .venv/.dev ## Check the documentation: its examples, its links, every option in it.
	$(BIN)/python -m pytest tests/docs $(ARGS)

site: .venv/.dev ## Build the site of the documentation into build/site, without the network.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -f website/mkdocs.yml
	@echo "Built build/site; look at it: $(BIN)/python -m http.server -b 127.0.0.1 -d build/site" >&2

relay-env: .venv/.relay ## Install what the engine relay needs into .venv-relay: TVM 0.19.

images: ## Build both images; needs Docker. BASE=debian@sha256:... pins what they begin with.
	@for name in api worker; do \
		docker build --build-arg REVISION="$$(git rev-parse HEAD)" \
			$(if $(BASE),--build-arg BASE=$(BASE)) \
			-f docker/$$name.Dockerfile -t subgraph-tuner-$$name:$(VERSION) . || exit 1; \
	done

sbom: .venv/.runtime .venv-sbom/.done ## Write sbom.json, the packages of .venv in CycloneDX.
	@.venv-sbom/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
		--output-file sbom.json $(BIN)/python
	@echo "Wrote sbom.json" >&2

clean: ## Remove .venv and caches; measurements and demo-out stay.
	rm -rf .venv .venv-relay .venv-sbom build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		.import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# What the tuner needs to run and to be compared; the demo starts without the rest.
.venv/.runtime: pyproject.toml constraints.txt
	@command -v cc >/dev/null || { echo "There is no C compiler, cc;" \
		"install one, for example: apt install gcc" >&2; exit 1; }
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "Python 3.11 or newer is needed, but" \
		"$(or $(PYTHON),python3) is not; try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual" \
		"environments; install its venv, for example: apt install python3-venv" >&2; exit 1; }
	@# The Python of an environment stays: the packages in it are of that one.
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Setting up .venv with $$($(BIN)/python --version)"
	@$(INSTALL) pip==$(PIP)
	@$(INSTALL) -e '.[onnxruntime,serve]'
	@touch $@

.venv/.dev: .venv/.runtime
	@echo "Adding PostgreSQL, torch and the development tools to .venv"
	@$(INSTALL) -e '.[onnxruntime,openvino,postgresql,torch,dev]'
	@touch $@

# Tests of the engine relay are skipped without it; there are packages for Python 3.11 on Linux for
# x86-64 only.
.venv/.relay: tuner/engines/relay/requirements.txt .venv/.runtime
	@if test "$$(uname -sm)" = "Linux x86_64" && { command -v python3.11 >/dev/null || \
		$(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; }; then \
		echo "Setting up .venv-relay"; $(BIN)/tuner engine install relay --into .venv-relay; \
	else echo "No python3.11 on Linux for x86-64: the engine relay is not installed" >&2; fi
	@touch $@

# Apart from .venv, whose packages it lists: it brings twenty of its own.
.venv-sbom/.done:
	@$(PYTHON) -m venv .venv-sbom
	@.venv-sbom/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
		cyclonedx-bom==$(CYCLONEDX)
	@touch $@
