# Two commands do all their own set-up: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: train test test-gpu test-lowest stress docs lint clean
train: $(VENV)/base.done
	$(BIN)/bighmm train --recipe quickstart

test: $(VENV)/dev.done lint
	$(BIN)/python -m pytest -n auto --dist loadgroup

# What needs a GPU: the kernels as they are, and training with them.
test-gpu: $(VENV)/dev.done
	$(BIN)/python -c "import torch; assert torch.cuda.is_available(), 'there is no GPU'"
	$(BIN)/python -m pytest tests/ops tests/test_gpu.py tests/test_open_families.py tests/distill/test_on_gpu.py tests/test_docs.py::test_extensions_train

# The lower ends of the dependencies' ranges, without those of the extra `teachers`.
test-lowest: .venv-lowest/done
	.venv-lowest/bin/python -m pytest -n auto --dist loadgroup --ignore tests/test_docs.py

# Processes that work in the same folders at the same time, also killed; a quarter of an hour.
stress: $(VENV)/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/stress.py

# The documentation as a site; warnings are errors.
docs: $(VENV)/dev.done
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

lint: $(VENV)/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/python.done:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'bighmm needs Python 3.11 or newer; run make PYTHON=/path/to/python')"
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/base.done: pyproject.toml constraints.txt $(VENV)/python.done
	$(PIP) install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/dev.done: pyproject.toml constraints.txt $(VENV)/base.done
	$(PIP) install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

.venv-lowest/done: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --constraint constraints-lowest.txt --editable ".[sentencepiece,outlines,plot]" pytest pytest-xdist hypothesis
	touch $@

clean:
	rm -rf $(VENV) .venv-lowest site .mypy_cache .ruff_cache .pytest_cache
