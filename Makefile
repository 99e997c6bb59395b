# `make demo` and `make test` set everything up by themselves; the others are what they are made of.
# PYTHON: the interpreter to build the environment with (3.11 or newer).
# TORCH_INDEX: index that pip takes PyTorch from, e.g. PyTorch's own CPU index to save gigabytes on a laptop.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEEPSPEED := $(VENV)/.installed-deepspeed
TORCH_INDEX ?=

.PHONY: setup deepspeed demo demo-elastic demo-bytegpt demo-azure test test-fast tensorflow horovod chaos soak check format bench bench-elastic bench-backends bench-planner bench-service bench-hostile backends-table lock clean

setup: $(STAMP)

$(STAMP): requirements/lock.txt requirements/torch.txt pyproject.toml deploy/make-venv
	deploy/make-venv "$(PYTHON)" "$(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r requirements/torch.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# What only the tests and benchmarks of the DeepSpeed backend need; its kernels are compiled when a script uses them.
deepspeed: $(DEEPSPEED)

$(DEEPSPEED): $(STAMP) requirements/deepspeed.txt
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
	    --no-build-isolation -r requirements/deepspeed.txt
	touch $@

demo: setup
	PYTHONPATH=. $(BIN)/python examples/demo.py

demo-elastic: setup
	PYTHONPATH=. $(BIN)/python examples/demo.py --example elastic

demo-bytegpt: setup
	PYTHONPATH=. $(BIN)/python examples/demo.py --example bytegpt

demo-azure: setup
	PYTHONPATH=. $(BIN)/python examples/demo_azure.py

# Everything: seconds for what is pure, minutes for what starts real clusters.
test: setup deepspeed
	$(BIN)/python -m pytest -q -n 2 -m "not slow"
	$(BIN)/python -m pytest -q -m slow --ignore=tests/e2e
	$(BIN)/python -m pytest -q -m slow tests/e2e

test-fast: setup
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

# TensorFlow is heavy: its tests run scripts in an environment of their own.
tensorflow: .venv-tensorflow/.installed

.venv-tensorflow/.installed: requirements/tensorflow.txt
	$(PYTHON) -m venv .venv-tensorflow
	.venv-tensorflow/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    -r requirements/tensorflow.txt
	.venv-tensorflow/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Horovod's last release is built from its source, with MPI: many minutes, and only for tests/integration/trainers/test_horovod.py.
horovod: .venv-horovod/.installed

.venv-horovod/.installed: requirements/horovod.txt requirements/torch.txt deploy/make-horovod
	deploy/make-horovod "$(PYTHON)" .venv-horovod $(TORCH_INDEX)
	.venv-horovod/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# A real training under twenty seeds of faults; SEED=7 runs one of them again.
chaos: setup
	REMORA_CHAOS_SEEDS=$(or $(SEED),all) $(BIN)/python -m pytest -q -s tests/chaos

# Thirty rounds of killing whatever can be killed, at random moments of a queue of short jobs; SEED=7 runs another one.
soak: setup
	REMORA_SOAK_ROUNDS=$(or $(ROUNDS),30) REMORA_SOAK_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -q -s tests/chaos/test_soak.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	PYTHONPATH=. $(BIN)/python -m benchmarks

bench-elastic: setup
	PYTHONPATH=. $(BIN)/python -m benchmarks elastic

bench-backends: setup deepspeed
	PYTHONPATH=. $(BIN)/python -m benchmarks backends

bench-planner: setup
	PYTHONPATH=. $(BIN)/python -m benchmarks planner

# What POST /v1/jobs costs beside a bare route, a tick of the controller, and a scrape of /metrics.
bench-service: setup
	PYTHONPATH=. $(BIN)/python -m benchmarks service

# Whether /healthz answers within 200 ms while the service is sent hostile requests.
bench-hostile: setup
	PYTHONPATH=. $(BIN)/python -m benchmarks.hostile

# What each backend can do, by the tests that show it: runs them, and writes docs/backends.md.
backends-table: setup deepspeed
	-$(BIN)/python -m pytest -q -m backend --junitxml=.pytest_cache/backends.xml
	$(BIN)/python -m tests.backends.table --report .pytest_cache/backends.xml

# Exact versions and hashes, without any URL; PyTorch stands alone in requirements/torch.txt.
lock: setup
	$(BIN)/uv pip compile pyproject.toml --extra service --extra azure --extra examples --extra dev --generate-hashes --no-annotate --no-header \
	    --no-emit-index-url --python-version 3.11 -o requirements/lock.txt

clean:
	rm -rf $(VENV) .venv-tensorflow .venv-horovod .demo .demo-azure .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
