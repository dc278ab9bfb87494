# One command each: `make demo` and `make test` do all set-up themselves.
PYTHON ?= python3.11
PYTHON := $(shell command -v $(PYTHON) || command -v python3)
BIN := .venv/bin
LOWEST := .venv-lowest
NATIVE := .venv-native
RELEASE := .venv-release
WORKERS ?= 2

.PHONY: demo test quick test-all portable check check-types check-platforms check-style check-generated generate bench docs dist sbom setup lowest native compiler browser clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	@echo "Installing tracekit in .venv ..."
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dask,mcp,plots,view]' --group dev
	@touch $@

DEMO := fixtures/train_amp.nsys-rep
demo: setup
	@$(BIN)/tracekit $(DEMO) --quiet
	@echo
	@echo "GPU time by layer, in the forward pass (fprop) and the backward pass (bprop):"
	@$(BIN)/tracekit rows $(DEMO) group_nodes --columns path,direction,instance_count,gpu_time_ns \
		--where "level = 3 and gpu_time_ns > 0" --sort=-gpu_time_ns -n 8 --timeunit ms --quiet
	@mkdir -p out
	@$(BIN)/tracekit convert $(DEMO) out/train_amp.html --force --quiet
	@echo
	@echo "The same as a page: open out/train_amp.html in a browser."
	@echo "In the viewer:      $(BIN)/tracekit view $(DEMO)"

# Chromium for the tests that open pages: the package of Debian if this user may install it, else the one of playwright.
browser: setup
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get; then \
			apt-get update -q && apt-get install -q -y --no-install-recommends chromium; \
		else \
			$(BIN)/playwright install chromium; \
		fi; \
	}

# Bytecode is cached for the processes that tests start. The coverage of all modules is measured by test-all.
COVERAGE := --cov=tracekit/core
test: export PYTHONDONTWRITEBYTECODE =
test: setup
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(COVERAGE) --cov-report=term:skip-covered --durations=15
	$(BIN)/python -m coverage report --include='tracekit/core/*' --fail-under=100

# Some quick tests of every module, with one parameter set each: always the same ones. `make quick PKG=core` runs more of
# those in tests/core, and `make quick PKG=readers.nsys` of those in tests/readers/test_nsys*.py.
TESTED := tests/$(subst .,/,$(patsubst tracekit.%,%,$(PKG)))
QUICK_TESTS := $(if $(PKG),$(or $(wildcard $(TESTED)),$(wildcard $(dir $(TESTED))test_$(notdir $(TESTED))*.py)),tests)
PACKAGES := $(patsubst tracekit/%/__init__.py,%,$(wildcard tracekit/*/__init__.py))
quick: export PYTHONDONTWRITEBYTECODE =
quick: export TRACEKIT_TESTS = quick
quick: export TRACEKIT_QUICK_TESTS = $(if $(PKG),150,600)
quick: setup
	$(if $(QUICK_TESTS),,$(error There are no tests of $(PKG). Hint: PKG is $(PACKAGES) or a package inside, as core.diagnosis))
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(QUICK_TESTS)

# The tests that write files, start processes and print, in a process that lacks what Windows and macOS lack.
portable: export PYTHONDONTWRITEBYTECODE =
portable: setup
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -p tests.portable $(PORTABLE)
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

PORTABLE := tests/system/platform/test_other_systems.py tests/test_every_format.py tests/cli/test_convert.py \
	tests/cli/test_printing.py tests/plan/test_cache.py tests/readers/test_spilling.py tests/sets/test_engines.py \
	tests/core/test_correlate.py tests/watching/test_outputs.py

# The lowest declared version of each dependency, no pandas, and the tests that read and write every format.
lowest: $(LOWEST)/.ready
	HYPOTHESIS_PROFILE=short $(LOWEST)/bin/python -m pytest -q -n $(WORKERS) $(CORE)

CORE := tests/test_every_format.py tests/test_conformance.py tests/test_join_ncu.py tests/test_ops_of_kernels.py \
	tests/system/test_forks.py tests/core tests/exporters tests/cli/test_convert.py tests/cli/test_printing.py \
	--ignore=tests/core/dlprof/test_against_model.py

$(LOWEST)/.ready: pyproject.toml constraints.txt tests/lowest.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(LOWEST)/bin/python tests/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/constraints.txt \
		--editable '.[plots,view]' --group test
	touch $@

# Compile the C programs in tracekit/native. The compiler takes up 411 MB and has an environment of its own.
native: setup $(NATIVE)/.ready
	$(BIN)/python -m tracekit.native.compile

$(NATIVE)/.ready: pyproject.toml
	$(PYTHON) -m venv --clear $(NATIVE)
	$(NATIVE)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(NATIVE)/bin/python -m pip install --quiet --disable-pip-version-check --group native
	touch $@

compiler:
	@$(MAKE) --no-print-directory $(NATIVE)/.ready || echo "Without the compiler, the programs in C are not compiled again."

# All cases of the fuzzers and all public captures, the C programs, and the coverage of all modules.
test-all: export TRACEKIT_TESTS = all
test-all: COVERAGE := --cov --cov-fail-under=90
test-all: compiler test

# With `make -j2`, the type checker runs beside the others.
check: check-types check-platforms check-style check-generated
check-types: setup
	$(BIN)/mypy

# For Windows and macOS, only the modules that use what differs between systems are checked, both at the same time. All
# modules are checked for them by `make portable`.
SYSTEM_MODULES := -p tracekit.system -m tracekit.__main__ -m tracekit.plan.cache.seal -m tracekit.mcp.process \
	-m tracekit.mcp.worker -m tracekit.watching.outputs -m tracekit.sets.recording -m tracekit.sets.workers
check-platforms: setup
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 $(SYSTEM_MODULES) & first=$$!; \
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin $(SYSTEM_MODULES); second=$$?; \
	wait $$first && exit $$second
check-style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/deptry tracekit
check-generated: setup
	$(BIN)/python -m schemas.generate --check
	$(BIN)/python docs/generate.py --check

# Every generated file that is out of date, except for the programs in C: see native.
generate: setup
	$(BIN)/python -m schemas.generate
	$(BIN)/python docs/generate.py

bench: setup
	$(BIN)/python tests/benchmarks/run.py "$(JOB)"

docs: generate
	$(BIN)/zensical build --strict

# The wheel and the source distribution, installed with each Python of this machine that tracekit supports, uv and pipx.
dist: setup
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group release
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/install.py dist

# The bill of materials of the wheel in dist/: what it installs.
sbom: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group release
	$(PYTHON) -m venv --clear --without-pip $(RELEASE)
	$(BIN)/python -m pip --python $(RELEASE)/bin/python install --quiet --disable-pip-version-check dist/*.whl
	mkdir -p out
	$(BIN)/cyclonedx-py environment $(RELEASE)/bin/python --pyproject pyproject.toml --mc-type library \
		--output-reproducible --output-file out/tracekit.cdx.json

clean:
	rm -rf .venv $(LOWEST) $(NATIVE) $(RELEASE) out site dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
