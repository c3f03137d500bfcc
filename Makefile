# The whole developer surface. Every target makes what it needs first; a second call with nothing changed does no work.
#   make run [PROMPT="..."] [MODEL=...] [ARGS="--temperature 0.7"]     talk to a model
#   make test | test-long | check | check-native | check-neon | bench | build | stub | format | clean
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
# Builds the native tests in build/$(1), with the CMake options $(2), and runs them.
native_tests = export PATH="$$PATH:$(CURDIR)/$(BIN)" && \
	cmake -S . -B build/$(1) -G Ninja -DNARROWS_NATIVE_TESTS=ON $(2) >/dev/null && \
	cmake --build build/$(1) && ctest --test-dir build/$(1) --output-on-failure
extra = p["project"]["optional-dependencies"]["$(1)"]

.PHONY: run test test-long check check-native check-neon bench build model stub format clean
.DEFAULT_GOAL := build

run: build
	@if [ -n "$$PROMPT" ]; then $(BIN)/narrows run $(MODEL) "$$PROMPT" $(ARGS); \
	elif [ -t 0 ] && [ -t 1 ]; then $(BIN)/narrows run $(MODEL) $(ARGS); \
	else $(BIN)/narrows run $(MODEL) "Why is the sky blue? Answer in two sentences." $(ARGS); fi

# One thread for numpy: its threads spin, and the engine's need the processors.
test test-long: export OPENBLAS_NUM_THREADS ?= 1

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
	@$(BIN)/python -m nanobind.stubgen --quiet --module narrows._native --output-file build/_native.pyi
	@$(BIN)/ruff format --quiet build/_native.pyi
	@cmp build/_native.pyi src/narrows/_native.pyi || { echo "src/narrows/_native.pyi is out of date: make stub" >&2; exit 1; }
	@$(BIN)/clang-format --dry-run -Werror $(FORMATTED)
	@$(BIN)/python -m narrows.measure.report --check

check-native: $(VENV)/.tools
	@$(call native_tests,release,)
	@$(call native_tests,sanitized,-DNARROWS_SANITIZE=ON)

check-neon: $(VENV)/.tools
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64-static; do \
		command -v $$tool >/dev/null || { echo "check-neon needs $$tool, which is not installed" >&2; exit 1; }; done
	@$(call native_tests,neon,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
		'-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;/usr/aarch64-linux-gnu')

bench: build model
	@mkdir -p bench/results
	@$(BIN)/narrows bench bandwidth --out bench/results/bandwidth.json
	@$(BIN)/narrows bench decode $(MODEL) --context 0,4096 --batch 1,8 --out bench/results/decode-$(notdir $(MODEL)).json
	@$(BIN)/narrows bench prefill $(MODEL) --tokens 512 --out bench/results/prefill-$(notdir $(MODEL)).json
	@$(BIN)/narrows bench peers $(MODEL) --out bench/results/peers-$(notdir $(MODEL)).json $(ARGS)
	@$(BIN)/python -m narrows.measure.report

build:
	@$(call locked,built)

model: build
	@$(BIN)/narrows pull smollm2 >/dev/null || echo "tests on the default model will be skipped: it could not be fetched"

stub: build
	@$(call locked,check)
	@$(BIN)/python -m nanobind.stubgen --quiet --module narrows._native --output-file src/narrows/_native.pyi
	@$(BIN)/ruff format --quiet src/narrows/_native.pyi

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

# An editable install knows Python files by name: written anew when one comes or goes.
$(VENV)/.modules: $(VENV)/.tools always
	@find src -name '*.py' | sort >$@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
.PHONY: always

# The stamp carries the time the build began: a source edited meanwhile is newer, and builds again.
$(VENV)/.built: $(VENV)/.tools $(VENV)/.modules $(SOURCES)
	@echo "building narrows"
	@touch $@.new
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable .
	@mv $@.new $@

$(VENV)/.test: $(VENV)/.tools
	@$(call require,$(call extra,serve) + $(call extra,test))
	@touch $@

$(VENV)/.check: $(VENV)/.tools
	@$(call require,$(call extra,check))
	@touch $@
