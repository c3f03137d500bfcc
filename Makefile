# The whole developer surface. Every target makes what it needs first; a second call with nothing changed does no work.
#   make run [PROMPT="..."] [MODEL=...] [ARGS="--temperature 0.7"]     talk to a model
#   make test | test-long | check | check-native | bench | build | format | clean
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2
# Taken as typed: a $ in a prompt is a $.
override export PROMPT := $(value PROMPT)

SOURCES := CMakeLists.txt $(shell find native -type f -not -path 'native/tests/*' 2>/dev/null)
FORMATTED = $(shell find native -name '*.h' -o -name '*.cc')
# One build at a time, however many people or jobs ask for one.
locked = mkdir -p build && $(if $(shell command -v flock),flock build/lock) $(MAKE) --silent --no-print-directory $(addprefix $(VENV)/.,$(1))
# Installs what an expression over pyproject.toml (as `p`) lists, so that versions are written down in one place only.
require = $(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print(*$(1), sep="\n")' \
	| xargs $(BIN)/python -m pip install --quiet --disable-pip-version-check
extra = $(call require,p["project"]["optional-dependencies"]["$(1)"])

.PHONY: run test test-long check check-native bench build model format clean
.DEFAULT_GOAL := build

run: build
	@if [ -n "$$PROMPT" ]; then $(BIN)/narrows run $(MODEL) "$$PROMPT" $(ARGS); \
	elif [ -t 0 ] && [ -t 1 ]; then $(BIN)/narrows run $(MODEL) $(ARGS); \
	else $(BIN)/narrows run $(MODEL) "Why is the sky blue? Answer in two sentences." $(ARGS); fi

test: model
	@$(call locked,test)
	@$(BIN)/pytest -m "not long" $(ARGS)

test-long: model
	@$(call locked,test)
	@$(BIN)/pytest $(ARGS)

check: build
	@$(call locked,check test)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyright
	@$(BIN)/clang-format --dry-run -Werror $(FORMATTED)

check-native: build
	@cmake=$$(command -v cmake || echo $(BIN)/cmake) && export PATH="$(CURDIR)/$(BIN):$$PATH" && \
	$$cmake -S . -B build/asan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DNARROWS_NATIVE_TESTS=ON -DNARROWS_SANITIZE=ON \
		-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python && \
	$$cmake --build build/asan --parallel && ctest --test-dir build/asan --output-on-failure

bench: build model
	@mkdir -p bench/results
	@$(BIN)/narrows bench bandwidth --out bench/results/bandwidth.json
	@$(BIN)/narrows bench decode $(MODEL) --context 0,4096 --batch 1,8 --out bench/results/decode-$(notdir $(MODEL)).json
	@$(BIN)/narrows bench prefill $(MODEL) --tokens 512 --out bench/results/prefill-$(notdir $(MODEL)).json

build:
	@$(call locked,built)

model: build
	@$(BIN)/narrows pull smollm2 >/dev/null || echo "tests on the default model will be skipped: it could not be fetched"

format: build
	@$(call locked,check)
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet
	@$(BIN)/clang-format -i $(FORMATTED)

clean:
	rm -rf build dist $(VENV) .pytest_cache .ruff_cache .hypothesis

# --- stamps ---------------------------------------------------------------------------------------------------------

$(VENV)/.tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Narrows needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing build tools into $(VENV)"
	@$(call require,p["build-system"]["requires"] + "$(if $(shell command -v cmake),,cmake) $(if $(shell command -v ninja),,ninja)".split())
	@touch $@

# The stamp carries the time the build began: a source edited meanwhile is newer, and builds again.
$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	@echo "building narrows"
	@touch $@.new
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable .
	@mv $@.new $@

$(VENV)/.test $(VENV)/.check: $(VENV)/.%: $(VENV)/.tools
	@$(call extra,$*)
	@touch $@
