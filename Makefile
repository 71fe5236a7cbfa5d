# `make serve` on a fresh clone: environment, server, nothing else to know. MODEL=, PORT=, ARGS= are passed on.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 30000
MODEL ?=
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: serve install

serve: $(STAMP)
	@exec $(BIN)/radiximp serve --host "$(HOST)" --port "$(PORT)" $(if $(MODEL),--model "$(MODEL)") -- $(ARGS)

install: $(STAMP)

# Installs again only when the dependencies may have changed.
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[sglang,model]'
	@touch $@
