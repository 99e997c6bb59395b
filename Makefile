# `make demo` and `make test` set everything up by themselves; the others are what they are made of.
# PYTHON: the interpreter to build the environment with (3.11 or newer).
# TORCH_INDEX: index that pip takes PyTorch from, e.g. PyTorch's own CPU index to save gigabytes on a laptop.
PYTHON ?= python3
# PYTHONS: other versions, under which `make test-pythons` runs what needs neither PyTorch nor Ray.
PYTHONS ?= 3.12 3.13
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEEPSPEED := $(VENV)/.installed-deepspeed
# Environments are made again when the contents of their requirements change, and not because a checkout wrote the files:
# a copy of each keeps its time while the contents are the same.
SAME   := build/requirements
same    = $(addprefix $(SAME)/,$(1))
TORCH_INDEX ?=
# LEAVE_OUT: parts of the benchmark of backends (fsdp, mpi, tensorflow, zero) for which nothing is installed and measured.
# ROUNDS: of it and of `make soak`; few of them show that a benchmark runs, and its figures then say little.
LEAVE_OUT ?=
ROUNDS ?=
BACKENDS := $(if $(filter mpi,$(LEAVE_OUT)),,mpirun) $(if $(filter zero,$(LEAVE_OUT)),,deepspeed) \
    $(if $(filter tensorflow,$(LEAVE_OUT)),,tensorflow)
BACKENDS_OPTIONS := $(if $(ROUNDS),--rounds $(ROUNDS)) $(addprefix --leave-out ,$(LEAVE_OUT))

.PHONY: setup deepspeed wheel demo demo-restart demo-bytegpt demo-huggingface demo-team demo-server demo-azure test-tools test test-fast test-pythons mpirun initdb tensorflow jax transformers trackers ray-programs schemathesis browser checkov kubernetes-validate template azurite horovod chaos soak soak-changed check client house mutate format bench bench-elastic bench-recovery bench-environments bench-backends bench-planner bench-service bench-page page-peers page-pictures bench-hostile bench-conversion backends-table frameworks-table lock clean

setup: $(STAMP)

$(SAME)/%: % always
	@mkdir -p $(@D) && { cmp -s $< $@ || cp $< $@; }

.PHONY: always
always:

$(STAMP): $(call same,requirements/lock.txt requirements/torch.txt pyproject.toml deploy/make-venv)
	deploy/make-venv "$(PYTHON)" "$(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r requirements/torch.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# What only the tests and benchmarks of the DeepSpeed backend need; its kernels are compiled when a script uses them.
deepspeed: $(DEEPSPEED)

$(DEEPSPEED): $(STAMP) $(call same,requirements/deepspeed.txt)
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
	    --no-build-isolation -r requirements/deepspeed.txt
	touch $@

# What `pip install` takes: dist/remora-*.whl, with the service in it.
wheel: setup
	$(BIN)/python -m hatchling build -t wheel -d dist

# The loss of a node of a script that uses remora.torch, which goes on in place.
demo: setup
	PYTHONPATH=. $(BIN)/python examples/demo.py

# The same loss for a script that knows nothing of it: processes start again from the newest checkpoint.
demo-restart: setup
	PYTHONPATH=. $(BIN)/python examples/demo.py --example digits

demo-bytegpt: setup
	PYTHONPATH=. $(BIN)/python examples/demo.py --example bytegpt

# The Trainer of transformers, in an environment that the job brings: twice, and the second time without the node of rank 0.
demo-huggingface: setup
	PYTHONPATH=. $(BIN)/python examples/demo_huggingface.py

# Two teams on one service: what a hostile job finds, where a secret is seen, and what one team reads of the other.
demo-team: setup
	PYTHONPATH=. $(BIN)/python examples/demo_team.py

# The service from a wheel, upgraded while a job trains; its head is killed, and a backup is put in place.
demo-server: setup
	PYTHONPATH=. $(BIN)/python examples/demo_server.py

demo-azure: setup
	PYTHONPATH=. $(BIN)/python examples/demo_azure.py

# Programs that tests start: PostgreSQL, Open MPI, iproute2, nftables, a C compiler, git, podman, debootstrap, Node.js with npm, Chromium, Prometheus, systemd's verifier.  Where they cannot be installed, it reports what is left
# out; with CI set that fails.
test-tools:
	deploy/install-tools --or-warn initdb mpirun ip nft cc git podman debootstrap node fusermount3 chromium prometheus systemd-analyze

# Everything: seconds for what is pure, minutes for what starts real clusters.
test: test-tools setup deepspeed transformers schemathesis browser azurite
	$(BIN)/python -m tests.run_lane fast
	$(BIN)/python -m tests.run_lane slow

test-fast: test-tools setup azurite
	$(BIN)/python -m tests.run_lane fast

# What needs neither PyTorch nor Ray, under other versions of Python; each has an environment of its own.
test-pythons: test-tools
	deploy/test-pythons $(PYTHONS)

# TensorFlow is heavy: its tests run scripts in an environment of their own.
tensorflow: .venv-tensorflow/.installed

.venv-tensorflow/.installed: $(call same,requirements/tensorflow.txt deploy/make-venv)
	deploy/make-venv "$(PYTHON)" .venv-tensorflow
	.venv-tensorflow/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    -r requirements/tensorflow.txt
	.venv-tensorflow/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# JAX brings its own NumPy; its tests, too, run scripts in an environment of their own.
jax: .venv-jax/.installed

.venv-jax/.installed: $(call same,requirements/jax.txt deploy/make-venv)
	deploy/make-venv "$(PYTHON)" .venv-jax
	.venv-jax/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/jax.txt
	.venv-jax/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# transformers, TRL and Lightning, layered on the packages of .venv as the environment of a job is on those of its node.
transformers: .venv-transformers/.installed

.venv-transformers/.installed: $(STAMP) $(call same,requirements/transformers.txt deploy/make-venv)
	deploy/make-venv "$(PYTHON)" .venv-transformers
	.venv-transformers/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
	    -r requirements/transformers.txt
	.venv-transformers/bin/python -c "import sys, sysconfig; \
	    open(sysconfig.get_path('purelib') + '/_0_layers.pth', 'w').write(sys.argv[1])" \
	    "$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")"
	.venv-transformers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Schemathesis asks the API what its description allows, and more.
schemathesis: .venv-schemathesis/.installed

.venv-schemathesis/.installed: $(call same,requirements/schemathesis.txt deploy/make-venv)
	deploy/make-venv "$(PYTHON)" .venv-schemathesis
	.venv-schemathesis/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    -r requirements/schemathesis.txt
	touch $@

# Playwright drives Debian's Chromium, and axe-core judges the page, for tests/browser.
browser: .venv-browser/.installed

.venv-browser/.installed: $(call same,requirements/browser.txt deploy/make-venv) | test-tools
	deploy/make-venv "$(PYTHON)" .venv-browser
	.venv-browser/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    -r requirements/browser.txt
	touch $@

# kubernetes-validate knows the schemas of Kubernetes, and cel-python its rules, for the tests of deploy/kubernetes.
kubernetes-validate: .venv-kubernetes/.installed

.venv-kubernetes/.installed: $(call same,requirements/kubernetes.txt deploy/make-venv)
	deploy/make-venv "$(PYTHON)" .venv-kubernetes
	.venv-kubernetes/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    -r requirements/kubernetes.txt
	touch $@

# checkov and pycep-parser read the Bicep of deploy/azure, for its tests.
checkov: .venv-checkov/.installed

.venv-checkov/.installed: $(call same,requirements/checkov.txt deploy/make-venv)
	deploy/make-venv "$(PYTHON)" .venv-checkov
	.venv-checkov/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    -r requirements/checkov.txt
	touch $@

# deploy/azure/main.json, which Azure is sent, from deploy/azure/main.bicep and its modules.
template: setup
	$(BIN)/python -m deploy.azure.bicep.compile

# Azure's emulator of blob storage; where npm is missing its tests are left out, and fail in CI.
azurite: .azurite/.installed

.azurite/.installed: $(call same,requirements/azurite/package.json requirements/azurite/package-lock.json) | test-tools
	mkdir -p .azurite
	cp requirements/azurite/package.json requirements/azurite/package-lock.json .azurite/
	if command -v npm >/dev/null; then npm ci --prefix .azurite --silent --no-audit --no-fund --ignore-scripts && touch $@; fi

# MLflow, Weights & Biases and TensorBoard, layered in the same way.
trackers: .venv-trackers/.installed

.venv-trackers/.installed: $(STAMP) $(call same,requirements/trackers.txt deploy/make-venv)
	deploy/make-venv "$(PYTHON)" .venv-trackers
	.venv-trackers/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
	    -r requirements/trackers.txt
	.venv-trackers/bin/python -c "import sys, sysconfig; \
	    open(sysconfig.get_path('purelib') + '/_0_layers.pth', 'w').write(sys.argv[1])" \
	    "$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")"
	.venv-trackers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# What Ray needs for `ray job submit` and Serve beside what the service needs, layered on the packages of .venv; for
# tests/integration/cluster/test_submitted_programs.py and test_ray_libraries.py.
ray-programs: .venv-ray-programs/.installed

.venv-ray-programs/.installed: $(STAMP) $(call same,requirements/ray-programs.txt deploy/make-venv)
	deploy/make-venv "$(PYTHON)" .venv-ray-programs
	.venv-ray-programs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
	    -r requirements/ray-programs.txt
	.venv-ray-programs/bin/python -c "import sys, sysconfig; \
	    open(sysconfig.get_path('purelib') + '/_0_layers.pth', 'w').write(sys.argv[1])" \
	    "$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")"
	touch $@

# Horovod's last release is built from its source, with MPI: many minutes, and only for tests/integration/trainers/test_horovod.py.
horovod: .venv-horovod/.installed

.venv-horovod/.installed: $(call same,requirements/horovod.txt requirements/torch.txt deploy/make-horovod)
	deploy/make-horovod "$(PYTHON)" .venv-horovod $(TORCH_INDEX)
	.venv-horovod/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# A real training under twenty seeds of faults; SEED=7 runs one of them again.
chaos: setup
	REMORA_CHAOS_SEEDS=$(or $(SEED),all) $(BIN)/python -m pytest -q -s tests/chaos

# What is long, or one of many: thirty rounds of killing whatever can be killed, at random moments of a queue of short jobs
# (ROUNDS and SEED choose others), all seeds of faults, and the tests marked `soak`; tests/soak.json says when that was done.
# PARTS names some of its parts, which tests/soak_parts.py lists with the files that they cover.
soak: test-tools setup deepspeed azurite
	PYTHONPATH=. $(BIN)/python -m tests.soak --rounds $(or $(ROUNDS),30) --seed $(or $(SEED),1) $(PARTS)

# Of its parts those whose files have changed since they passed, the shortest first, as many as take BUDGET seconds together.
soak-changed: test-tools setup deepspeed azurite
	PYTHONPATH=. $(BIN)/python -m tests.soak --changed $(if $(BUDGET),--budget $(BUDGET))

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	PYTHONPATH=. $(BIN)/python -m tests.soak --age
	$(BIN)/python -m deploy.make_client --check

# The blocking client, remora/client/blocking.py, from the text of the asynchronous one.
client: setup
	$(BIN)/python -m deploy.make_client

# How the code is cut, in figures: lengths of functions and files, modules with one importer, names used twice.
house: setup
	$(BIN)/python -m tests.architecture.house

# Faults put into what is pure, one at a time, in a copy: how many of SAMPLE the fast tests see, and which they do not.
mutate: setup
	$(BIN)/python -m tests.mutation --seed $(or $(SEED),1) --sample $(or $(SAMPLE),100)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BACKENDS) initdb setup
	PYTHONPATH=. $(BIN)/python -m benchmarks $(BACKENDS_OPTIONS)

bench-elastic: setup
	PYTHONPATH=. $(BIN)/python -m benchmarks elastic

# Where the milliseconds of a recovery, of growth and of a submission go; writes the table of docs/benchmarks.md.
bench-recovery: setup
	PYTHONPATH=. $(BIN)/python -m benchmarks recovery

# Seconds from submission to the first step of a job with packages of its own; it needs a package index.
bench-environments: setup
	PYTHONPATH=. $(BIN)/python -m benchmarks environments

bench-backends: $(BACKENDS) setup
	PYTHONPATH=. $(BIN)/python -m benchmarks backends $(BACKENDS_OPTIONS)

mpirun initdb:
	deploy/install-tools $@

bench-planner: setup
	PYTHONPATH=. $(BIN)/python -m benchmarks planner

# What POST /v1/jobs costs beside a bare route, a tick of the controller, and a scrape of /metrics.
bench-service: initdb setup
	PYTHONPATH=. $(BIN)/python -m benchmarks service

# How the web page keeps up with many jobs, watchers and lines of log, beside the pages of Ray and MLflow.
bench-page: setup browser page-peers
	PYTHONPATH=. $(BIN)/python -m benchmarks page

# The pictures of docs/page.md, of a real run; make test makes them in build/page.
page-pictures: setup browser
	PAGE_PICTURES=docs CI=true $(BIN)/python -m pytest -q tests/browser

page-peers: .venv-page-peers/.installed

.venv-page-peers/.installed: $(call same,requirements/page-peers.txt deploy/make-venv)
	deploy/make-venv "$(PYTHON)" .venv-page-peers
	.venv-page-peers/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    -r requirements/page-peers.txt
	touch $@

# Whether /healthz answers within 200 ms while the service is sent hostile requests.
bench-hostile: setup
	PYTHONPATH=. $(BIN)/python -m benchmarks.hostile

# How fast a DeepSpeed checkpoint is converted for other workers, by several processes, and what a script waits for it.
bench-conversion: deepspeed
	PYTHONPATH=. $(BIN)/python -m benchmarks.conversion

# What each backend can do, by the tests that show it: runs them, and writes docs/backends.md.
backends-table: setup deepspeed
	-$(BIN)/python -m pytest -q -m backend --junitxml=.pytest_cache/backends.xml
	$(BIN)/python -m tests.backends.table --report .pytest_cache/backends.xml

# The same for libraries and docs/frameworks.md.
frameworks-table: setup deepspeed transformers tensorflow jax
	-$(BIN)/python -m pytest -q -m framework --junitxml=.pytest_cache/frameworks.xml
	$(BIN)/python -m tests.backends.table --report .pytest_cache/frameworks.xml

# Exact versions and hashes, without any URL; PyTorch stands alone in requirements/torch.txt.
lock: setup
	$(BIN)/uv pip compile pyproject.toml --extra service --extra azure --extra tracing --extra examples --extra dev --generate-hashes --no-annotate --no-header \
	    --no-emit-index-url --python-version 3.11 -o requirements/lock.txt

clean:
	rm -rf $(VENV) $(SAME) .azurite .venv-tensorflow .venv-jax .venv-transformers .venv-trackers .venv-ray-programs .venv-schemathesis .venv-browser .venv-page-peers .venv-checkov .venv-kubernetes .venv-horovod .venv-python-* .demo .demo-azure .demo-huggingface .demo-team .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
