# The two commands of the README are `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
MODEL  := smollm2-135m

# With the repository as working directory, `kernels/` must not be imported as the PyPI package
# of that name, which transformers looks for.
export PYTHONSAFEPATH := 1

.PHONY: demo install kernels model test test-slow test-gpu lint bench bench-kernels clean

demo: model
	$(BIN)/boughs run --model $(MODEL) examples/multi_turn.py
	$(BIN)/boughs run --model $(MODEL) examples/few_shot.py

install: $(STAMP)

model: $(STAMP)
	@$(BIN)/boughs pull $(MODEL)

# What the demo model's first start would compile, beforehand.
kernels: $(STAMP)
	$(BIN)/python -m boughs.kernels.ahead int4 int8 --cache float32

test: model
	$(BIN)/pytest

test-slow: model
	$(BIN)/pytest -m slow

# The tests of the real kernels; they skip without an NVIDIA GPU.
test-gpu: model
	BOUGHS_TEST_GPU=1 $(BIN)/pytest -m gpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: model
	$(BIN)/python benchmarks/radix.py
	$(MAKE) bench-kernels
	$(BIN)/python benchmarks/perplexity.py
	$(BIN)/python benchmarks/lang.py
	$(BIN)/python benchmarks/engine.py
	GOMP_SPINCOUNT=0 $(BIN)/python benchmarks/host.py
	$(BIN)/python benchmarks/gpu.py

# What docs/kernels.md says of attention and linear layers. With PEER=python, the Python of an
# environment that has openvino-genai or llama-cpp-python, and with LLAMA_SERVER=path, llama.cpp's
# server, the same model there too.
bench-kernels: model
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/pieces.py
	$(BIN)/python benchmarks/linear.py
	$(BIN)/python benchmarks/steps.py
	$(if $(PEER)$(LLAMA_SERVER),$(BIN)/python benchmarks/peers.py \
		$(if $(PEER),--peer $(PEER)) $(if $(LLAMA_SERVER),--llama-server $(LLAMA_SERVER)))

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else "Boughs needs Python 3.11 to 3.13, this is %d.%d; name another one: make PYTHON=python3.12" % v)'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python has no venv: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev,bench]'
	@touch $@
