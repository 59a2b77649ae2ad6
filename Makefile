# Every target works from a clean clone: it creates .venv and installs when missing or when pyproject.toml changed.
# PYTHON chooses the interpreter that .venv is made with; `make clean` first to change it.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.installed
TEST := $(PY) -m pytest -m 'not soak'
# Without bytecode each of the child interpreters of the tests would compile lit_loader again.
unexport PYTHONDONTWRITEBYTECODE
# `make test` runs five parts at once, these and the rest: tests of workers wait more than they compute. They fork from
# processes without torchvision and lightning, which would double the time of each fork; what imports these is apart.
IMPORTS := $(addprefix tests/,loader/device/test_nesting.py loader/device/test_pinning.py faults/test_bad_sample_report.py \
	loader/test_iterator_as_torchs.py loader/test_thread_transforms.py parity/test_collation.py \
	parity/test_deviations.py parity/test_spawn.py seeding/test_draws.py seeding/test_thread_scope.py \
	memory/test_random_batches.py memory/test_serialization.py)
LOADER := $(addprefix tests/,engine faults loader) $(addprefix --ignore=,$(IMPORTS) tests/loader/lightning tests/loader/resume)
STATE := $(addprefix tests/,parity portability loader/resume samplers seeding memory test_distributions.py test_exports.py \
	foundation app/test_hydra_app.py installed monitoring/test_diagnosis.py monitoring/test_timeline.py test_layers.py \
	test_nox_sessions.py test_project_files.py test_walk.py) $(addprefix tests/storage/test_,$(addsuffix .py,cache_file \
	fetch_process fetching jobs local_images object_server request_estimate schedule tar_index)) \
	$(addprefix --ignore=,$(IMPORTS))
TRAINING := $(addprefix tests/,datamodules datasets loader/lightning transforms) $(IMPORTS)
FILES := $(addprefix tests/,annotations callbacks app/commands app/composition examples recipes)
REST := $(addprefix --ignore=,$(filter-out --ignore=% $(IMPORTS),$(LOADER) $(STATE) $(TRAINING) $(FILES)))

.PHONY: demo test parts soak lint bench docs clean
.DELETE_ON_ERROR:

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is %s; try make PYTHON=python3.12" % sys.version.split()[0])'
	@test -e lit_loader/conf || ln -s ../conf lit_loader/conf # an sdist holds no links
	$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY) ## draw the embedded data set, fit and test a detector on it
	$(PY) examples/train.py experiment=shapes sampler=class_balanced

test: $(READY) ## the whole suite, five parts at once, about 10 minutes on two cores
	@$(MAKE) --no-print-directory parts

parts: # the suite in an environment that is there: make parts PY=python
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; code=0; parts=; \
	$(foreach part,LOADER STATE TRAINING FILES,$(TEST) -o cache_dir=.pytest_cache/$(part) $($(part)) > "$$out/$(part)" 2>&1 & parts="$$parts $$!";) \
	$(TEST) $(REST) || code=$$?; \
	for part in $$parts; do wait $$part || code=$$?; done; cat "$$out"/*; exit $$code

soak: $(READY) ## the long, exhaustive runs
	$(PY) -m pytest -m soak --timeout=3600
	$(PY) -m pytest -m 'hypothesis and not soak' --hypothesis-profile=soak --timeout=3600

lint: $(READY) ## style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: $(READY) ## the site, in docs/_build/html; runs the tutorials; warnings are errors
	$(PY) -m sphinx -W --keep-going -j auto -b html docs docs/_build/html

bench: $(READY) ## ours beside torch's loader, printed as ratios
	$(PY) -m benchmarks

clean:
	rm -rf $(VENV) logs outputs .pytest_cache .mypy_cache .ruff_cache dist docs/_build docs/tutorials
