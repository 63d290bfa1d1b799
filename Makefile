# Every target makes its own .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test fuzz soak test-ports test-trace test-runtimes test-scale test-zoo test-minimal lint bench noise zoo docs wheel-check sbom clean

# One stamp per set of extras, so that `make demo` does not install the test tools.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable ".[cpu]"
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --editable ".[cpu,train,export,serve,sign,medical,parquet,dossier,dev]"
	touch $@

# The bundled model on the sample images: a table, a picture, and what the passes cost. No PyTorch.
demo: $(VENV)/.demo
	$(BIN)/uce-edge predict examples/images --reject auto --sort uncertainty --sheet demo.png
	$(BIN)/uce-edge predict examples/images/cat.jpg --reject auto
	$(BIN)/uce-edge bench
	$(BIN)/uce-edge bench --model cifar10 --inference mc --samples 1,5,25
	@echo
	@echo "demo.png shows the accepted, uncertain and out-of-distribution images. To try next:"
	@echo "    $(BIN)/uce-edge predict YOUR-PHOTO.jpg --reject auto"
	@echo "    $(BIN)/uce-edge info                      # what the file says of itself, and what thresholds let through"
	@echo "    $(BIN)/pip install -e '.[cpu,train,export]' -c constraints.txt && $(BIN)/uce-edge demo    # train your own"

# The ports to other languages have tests of their own: make test-ports.
test: $(VENV)/.dev
	UCE_EDGE_KEEP=build/ci OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --durations=10 --ignore tests/ports

# Damaged files and requests by the ten thousand, and images that ask for gigabytes: some ten minutes on one core.
# UCE_EDGE_FUZZ_FIRST=N starts from other damage; a failure says how to repeat it.
fuzz: $(VENV)/.dev
	UCE_EDGE_FUZZ=$${UCE_EDGE_FUZZ:-100} OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s tests/fuzz

# 100,000 predictions, a watched folder of 20,000 files, 200 kills, a server under load for three minutes, full and read-only
# disks (which need root): a quarter of an hour.
soak: $(VENV)/.dev
	UCE_EDGE_SOAK=$${UCE_EDGE_SOAK:-100000} OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s -rs tests/soak

# The ports to other languages: fetches what they need from package registries, then runs their tests on the goldens.
# A port that cannot be tested is a failure.
test-ports: $(VENV)/.dev
	bash .ci/tools
	examples/cpp/get-headers.sh
	cd examples/node && npm ci
	$(BIN)/python examples/web/fetch.py
	rm -rf build/web && $(BIN)/python -m build --outdir build/web examples/web
	UCE_EDGE_PORTS=required $(BIN)/python -m pytest -rs tests/ports

# Every system call of the commands: nothing is sent, nothing is written unasked. A part of test-ports.
test-trace: $(VENV)/.dev
	bash .ci/tools
	$(BIN)/python examples/web/fetch.py
	UCE_EDGE_PORTS=required $(BIN)/python -m pytest -rs tests/ports/test_trace.py

# Other runtimes on the goldens, from PyPI, each in an environment of its own; and the oldest ONNX Runtime.
test-runtimes: $(VENV)/.dev
	PYTHON=$(PYTHON) bash .ci/runtimes

# Scoring and serving with a real Ray, on one machine and on a cluster of several nodes, in an environment of its own.
SCALE := .venv-scale
test-scale:
	test -x $(SCALE)/bin/python || $(PYTHON) -m venv $(SCALE)
	$(SCALE)/bin/pip install --quiet --disable-pip-version-check --upgrade pip
	$(SCALE)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt ".[cpu,ray,serve]" "ray[serve]" pytest duckdb
	$(SCALE)/bin/python -m pytest -rs tests/scale

# timm and transformers on PyTorch alone: --no-deps leaves torchvision out, which benchmarks/zoo/torchvision_stub.py replaces.
ZOO := .venv-zoo
ZOO_PIP := $(ZOO)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt
$(ZOO)/.ready: pyproject.toml constraints.txt
	test -x $(ZOO)/bin/python || $(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(ZOO_PIP) --editable ".[cpu,train,export]" pytest pyyaml huggingface_hub tokenizers regex tqdm packaging
	$(ZOO_PIP) --no-deps timm transformers
	touch $@

# A dozen small networks of timm and transformers by every route: less than ten minutes on two cores.
test-zoo: $(ZOO)/.ready
	OMP_NUM_THREADS=1 $(ZOO)/bin/python -m pytest -rs --durations=5 tests/zoo

# Pretrained architectures at 224x224 by every route; writes docs/zoo.md. Some half an hour on two cores. It goes on where
# it stopped. Some networks only: .venv-zoo/bin/python benchmarks/zoo resnet18
zoo: $(ZOO)/.ready
	$(ZOO)/bin/python benchmarks/zoo

# The oldest versions that pyproject.toml allows, with the tests that need no torch.
test-minimal:
	PYTHON=$(PYTHON) bash .ci/minimal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# Some 25 minutes on two cores. What takes gigabytes runs with: pytest benchmarks -m large
bench: $(VENV)/.dev
	$(PIP) --editable ".[cpu,backbones]"
	$(BIN)/python -m pytest benchmarks -m "not large" --benchmark-columns=min,median,rounds --benchmark-sort=name
	$(BIN)/python benchmarks/speed/page.py
	$(BIN)/python benchmarks/speed/edge_networks.py

# Measures the noise table and writes docs/noise.md.
noise: $(VENV)/.dev
	$(BIN)/python benchmarks/studies/noise_quality.py

# The site, from docs/ and the docstrings, into build/site: a dead link stops it (with --quiet, mkdocs counts no warnings). Look at it with
# python3 -m http.server --directory build/site. Its examples are made by runs of the program.
SITE := .venv-docs
docs:
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/pip install --quiet --disable-pip-version-check --upgrade pip
	$(SITE)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[cpu,docs]"
	$(SITE)/bin/python examples/web/fetch.py
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build

# The wheel as a user gets it: an empty environment without torch predicts with a model exported here.
wheel-check: $(VENV)/.dev
	PYTHON=$(BIN)/python UCE_EDGE_KEEP=build/ci bash .ci/wheel-check

# The software bill of materials of the wheel in dist/ (make wheel-check), in CycloneDX format.
sbom: $(VENV)/.dev
	$(BIN)/python .ci/sbom.py dist/*.whl

clean:
	rm -rf $(VENV) $(SCALE) $(SITE) $(ZOO) dist build demo demo.png examples/node/node_modules .pytest_cache .mypy_cache .ruff_cache
