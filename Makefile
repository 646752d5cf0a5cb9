# Every target works from a fresh clone with Python 3.11+ and make; the environment is .venv at the root.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed

.PHONY: help install setup demo examples test format lint proto bench papers bundle release fuzz faults postgresql lock docs site clean
.DEFAULT_GOAL := help

help:
	@echo "make install  what running needs, into .venv"
	@echo "make demo   three sites train together over mutual TLS on real patients' records"
	@echo "make examples  the scripts of examples/ in full, and their pictures in docs/examples (minutes)"
	@echo "make test   the whole test suite, with the branches of the pure rooms that no test took"
	@echo "make format | lint   ruff repairs; format, lint, types, import contracts, spelling, prose, generated docs"
	@echo "make bench  the benchmarks behind the figures in the docs"
	@echo "make papers DATA=DIR  the papers' experiments and the benefit study on real tables (hours)"
	@echo "make fuzz INPUTS=100000  damaged files against every command, damaged messages against both ends (an hour)"
	@echo "make faults TIMES=5  every drill of real processes and 300 storms, into docs/research/reliability.md (15 minutes)"
	@echo "make postgresql  tables from a real PostgreSQL server, which it starts in a folder of its own and ends"
	@echo "make bundle  an installation for machines without a network: wheels, hashes, the image"
	@echo "make release [KEY=FILE RELEASE_URL=ADDRESS]  wheel, source, SBOM, checksums and signature in dist/VERSION; publishes nothing"
	@echo "make site   docs/ as a static site in build/site"
	@echo "make setup | proto | docs | lock | clean"

setup: $(STAMP)

install: $(RUNTIME)
	@echo "type \`. $(BIN)/activate\`: coreg-agent, coreg-coordinator and coreg-sim are on the path then"

# From the locks alone, with hashes checked; nothing is compiled. A second run finds the stamp and does nothing. uv installs in
# seconds what takes pip a minute. If the index has no uv, or uv cannot reach the index, pip installs and shows its progress.
PIP := -m pip --disable-pip-version-check
LOCKED := --only-binary :all: --require-hashes -r
define locked
	@echo "installing $$(grep -c '==' $(1)) packages into $(VENV)"
	@{ $(BIN)/uv --version >/dev/null 2>&1 && $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $(LOCKED) $(1); } \
	|| { echo "without uv: pip takes a minute or two" && $(BIN)/python $(PIP) install $(LOCKED) $(1); }
endef
# What running needs. Tests and checks need more, in $(STAMP).
$(RUNTIME): requirements-build.lock requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	-$(BIN)/python $(PIP) --retries 0 --timeout 15 install --quiet $(LOCKED) requirements-installer.lock
	$(call locked,requirements.lock)
	$(BIN)/python $(PIP) install --quiet $(LOCKED) requirements-build.lock
	$(BIN)/python $(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $(RUNTIME)
$(STAMP): $(RUNTIME) requirements-dev.lock
	$(call locked,requirements-dev.lock)
	@touch $(STAMP)

demo: $(RUNTIME)
	$(BIN)/python -m examples.demo

# Each script writes its picture into the current folder.
examples: setup
	cd docs/examples && for each in ../../examples/*.py; do ../../$(BIN)/python $$each || exit 1; done

# Also the branches of the pure rooms that no test took; fails below 95 %.
test: setup
	$(BIN)/python -m pytest --cov

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/python tools/docs.py --check
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/ruler.py --quiet
	$(BIN)/lint-imports
	$(BIN)/mypy

proto: setup
	PYTHON=$(BIN)/python sh tools/proto.sh

docs: setup
	$(BIN)/python tools/docs.py --write

# A static site without a word from elsewhere; what makes it has an environment of its own.
SITE := .venv-docs
$(SITE)/.installed: requirements-docs.lock
	$(PYTHON) -m venv $(SITE)
	@{ $(BIN)/uv --version >/dev/null 2>&1 && $(BIN)/uv pip install --quiet --python $(SITE)/bin/python $(LOCKED) $<; } \
	|| $(SITE)/bin/python $(PIP) install --quiet $(LOCKED) $<
	@touch $(SITE)/.installed

site: $(SITE)/.installed
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict

bench: setup
	$(BIN)/python -m pytest benchmarks -c benchmarks/pytest.ini
	$(BIN)/python benchmarks/rounds.py
	for each in fits performance round_trip installation connected sizing alignment diabetes; do \
	  $(BIN)/python benchmarks/$$each.py --write || exit 1; done
	for each in additive_service masking xnv online scaling scores_on_demand; do $(BIN)/python benchmarks/$$each.py || exit 1; done
	$(BIN)/python tools/docs.py --write

# Hours on two cores. DATA is a folder of data sets with manifest.json (docs/research/papers.md, docs/research/benefit.md).
DATA ?= data
JOBS ?= 2
papers: setup
	$(BIN)/python -m benchmarks.papers all --data $(DATA) --jobs $(JOBS)
	$(BIN)/python -m benchmarks.benefit --data $(DATA) --jobs $(JOBS)
	$(BIN)/python tools/docs.py --write

FIRST ?= 0
# Other seeds with FIRST=. A failure names its seed; add it to FOUND of the test.
INPUTS ?= 100000
fuzz: setup
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest tests/wire/test_codec.py -k "garbles or noise"
	COREG_FUZZ=$(INPUTS) COREG_FUZZ_FROM=$(FIRST) $(BIN)/python -m pytest tests/e2e/test_damaged_files.py

TIMES := 5
faults: setup
	$(BIN)/python tools/faults.py --times $(TIMES)

postgresql: setup
	PYTHON=$(BIN)/python sh tools/postgresql.sh

bundle: setup
	sh tools/bundle.sh

RELEASE := .venv-release
$(RELEASE)/.installed: requirements-release.lock
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python $(PIP) install --quiet $(LOCKED) requirements-release.lock
	@touch $(RELEASE)/.installed

release: $(RELEASE)/.installed
	sh tools/release.sh

# Needs uv (pip install uv). The locks are for every platform and Python from 3.11 on.
lock:
	echo "uv" | uv pip compile --universal --python-version 3.11 --generate-hashes --no-header - -o requirements-installer.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header tools/build-requirements.txt -o requirements-build.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header tools/release-requirements.txt -o requirements-release.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --extra web pyproject.toml -o requirements.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --extra docs pyproject.toml -o requirements-docs.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --extra dev --extra sim --extra web --extra onnx --extra plot --extra postgresql pyproject.toml tools/build-requirements.txt -o requirements-dev.lock

clean:
	rm -rf $(VENV) $(SITE) $(RELEASE) build demo-out
