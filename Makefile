# make demo   set up, check every recipe, explain one, fine-tune a tiny model on the CPU
# make test   set up, then lint, types and the tests, real training included
# Both need Python 3.11 or later, git and make; `make test` also a C++ compiler, for DeepSpeed.
# Where SLURM is installed (.ci/run has the command), it also runs jobs on a cluster of its own.
# What they install goes to .venv. On a machine with GPUs: pip install ".[train]"

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tiny model gains nothing from threads, and OpenMP threads that wait for each other are several times slower
# as soon as anything else runs on the machine.
export OMP_NUM_THREADS := 1
# Operators that DeepSpeed compiles. Of two processes that compile one at a time, the first spoils it for all that follow.
export TORCH_EXTENSIONS_DIR := $(CURDIR)/.cache/torch_extensions
# The compiler is the user's or c++, called by a script that leaves out what no test needs.
export COMPILER := $(or $(COMPILER),$(if $(filter environment,$(origin CXX)),$(CXX),c++))
export CXX := $(CURDIR)/tests/support/c++
# Bytecode is written by the first import and not for every file at installation, which takes a minute longer.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(VENV)/bin/python -m pip install -qq --no-compile --constraint release/constraints.txt

.PHONY: help demo test test-fast test-slow test-real test-trainings test-nodes nightly mutants compare check tables new lint types versions clean \
  $(addprefix nightly-,tests versions benchmarks mutants inputs) \
  benchmark benchmark-speed fuzz

help:
	@sed -n 's/^# //p' Makefile | head -5

demo: $(VENV)/train.done
	lmf-recipes check recipes
	lmf-recipes explain recipes/qwen32b-910b-lora.yaml
	lmf-recipes train recipes/tiny-cpu-lora.yaml

# Three side by side on two cores, as trainings wait for each other, and jobs of several nodes for what they have
# started; these come first. Tests that ask LLaMA-Factory, DeepSpeed and torch share one process that has imported them.
# DeepSpeed's operators are compiled before, while the types are checked, so that no part has to wait for them.
BEFORE := $(VENV)/operators.done lint types
PARTS := test-trainings test-nodes test-real test-slow test-fast
PYTEST := pytest -q --complete
# What hangs ends the tests and shows where: half an hour is ten times what any test takes on a busy machine. The fast
# ones have no such limit, which takes two milliseconds for each test.
LIMITED := -n 0 -o faulthandler_timeout=1800 -o faulthandler_exit_on_timeout=true
# What only the nightly run does is left out elsewhere.
AND := and not nightly
export NOT_RUN := $(CURDIR)/build/not-run.txt
not-run = @sort -u $(NOT_RUN) 2>/dev/null | grep . || echo "no test was skipped"

# One core sets up what another environment needs while the packages of this one come, one after the other. What was
# killed leaves locks that DeepSpeed would wait for.
test: $(VENV)/venv.done
	@$(MAKE) --no-print-directory $(VENV)/engines.done & engines=$$!; \
	  $(MAKE) --no-print-directory $(VENV)/deepspeed.done; wait $$engines
	@mkdir -p build && rm -f $(TORCH_EXTENSIONS_DIR)/*/lock $(NOT_RUN)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync $(BEFORE)
	@$(MAKE) --no-print-directory --jobs=3 --output-sync $(PARTS)
	$(not-run)

test-real test-trainings test-nodes: $(VENV)/operators.done

test-slow: $(VENV)/engines.done

test-fast:
	$(PYTEST) -m "not slow and not training $(AND)"

test-slow:
	$(PYTEST) $(LIMITED) -m "slow and not real and not training $(AND)"

test-real:
	$(PYTEST) $(LIMITED) -m "slow and real and not training $(AND)"

test-trainings:
	$(PYTEST) $(LIMITED) -m "training and not network $(AND)"

test-nodes:
	$(PYTEST) $(LIMITED) -m "training and network $(AND)"

# What a commit leaves out: all cases of sampled tests, new draws of property tests and fuzzed inputs, the oldest and the
# newest releases of every dependency, mutants, and each benchmark against what the docs say. It goes on where one fails.
NIGHTLY := tests versions benchmarks mutants inputs
nightly: $(VENV)/venv.done
	@$(MAKE) --no-print-directory --keep-going $(addprefix nightly-,$(NIGHTLY))

nightly-tests:
	@$(MAKE) --no-print-directory test AND= PYTEST="$(PYTEST) --whole --hypothesis-profile=nightly"

nightly-versions: versions

nightly-benchmarks: $(VENV)/deepspeed.done
	python -m benchmarks all --check

nightly-mutants: mutants

# Changes the source of physics, rules and reading in 150 places, one at a time: does a test see it? The same mutants as
# the record; fails where one survives that was killed. MODULE and SEED draw others.
DRAWN := --whole --again benchmarks/evidence/mutants/before.csv
mutants: $(VENV)/dev.done
	python tools/mutants.py $(if $(MODULE)$(SEED),$(addprefix --module ,$(MODULE)) $(addprefix --seed ,$(SEED)),$(DRAWN))

nightly-inputs:
	@$(MAKE) --no-print-directory fuzz HOURS=0.2 START=$$(date +%y%j0000)

check: $(VENV)/check.done
	lmf-recipes check recipes

tables: $(VENV)/dev.done
	python tools/derive.py

# After an entry by hand for a model or a device, or a row for recipes (CONTRIBUTING.md): what it lacks, what follows, its tests.
new: $(VENV)/dev.done
	python tools/new_entry.py

lint: $(VENV)/dev.done
	ruff check .
	ruff format --check .

types: $(VENV)/dev.done
	mypy

# AREA is one of those that `python -m benchmarks` lists: make benchmark AREA=memory
benchmark: $(VENV)/check.done
	python -m benchmarks $(AREA)

# As a user installs it: an editable install starts 30 ms later.
benchmark-speed: $(VENV)/venv.done
	@$(VENV)/bin/python -m venv --clear build/speed
	@build/speed/bin/python -m pip install -qq --constraint release/constraints.txt . yamllint check-jsonschema
	build/speed/bin/python -m benchmarks speed

# Each Python that is on PATH, from 3.11 on, with the oldest and with the newest packages.
versions: $(VENV)/venv.done
	python tools/try_pythons.py

# Inputs that no test has tried: KIND="recipe csv" names kinds, HOURS says how long. What is answered wrongly becomes a
# case in tests/fixtures/fuzzed/.
HOURS ?= 1
COUNT ?= 5000
START ?= 1000000
fuzz: $(VENV)/dev.done
	python -m benchmarks reliability stress_inputs --hours $(HOURS) --count $(COUNT) --start $(START) --keep $(if $(KIND),--kind $(KIND))

# What the program answers at the commit before, and here. BASE=COMMIT is the older one; ALLOW="words numbers:plan/*" are
# differences that are intended, RENAMED="old=new" names that have changed; SAMPLE=20 asks one question in 20, SHOW=ID
# shows both answers to one.
BASE ?=
ALLOW ?=
RENAMED ?=
SAMPLE ?= 1
SHOW ?=
compare: $(VENV)/dev.done
	@python tools/compare $(if $(IF_HISTORY),--if-history) --sample $(SAMPLE) $(if $(BASE),--base $(BASE)) $(if $(SHOW),--show '$(SHOW)') \
	  $(foreach each,$(ALLOW),--allow '$(each)') $(foreach each,$(RENAMED),--renamed '$(each)')

clean:
	rm -rf $(VENV) build saves

# Each step of the set-up leaves a .done file only when it is complete, so an interrupted one starts again. An environment
# that somebody has made in .venv stays, with what is installed in it.

$(VENV)/venv.done:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "set-up: virtual environment in $(VENV)"
	@$(VENV)/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || $(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/check.done: $(VENV)/venv.done pyproject.toml release/constraints.txt
	@echo "set-up: lmf-recipes"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/dev.done: $(VENV)/check.done
	@echo "set-up: lint and test tools"
	@$(INSTALL) --editable '.[dev]'
	@touch $@

# torch before llamafactory, which would otherwise bring the newest one. The published torchvision and torchaudio
# wheels are CUDA builds and do not import beside a CPU torch, and then neither does LLaMA-Factory. Text training calls
# neither: where the real one does not import, torchvision is left out (transformers copes) and torchaudio, which
# LLaMA-Factory imports, is an empty module. This is for the demo and the tests only.
$(VENV)/train.done: $(VENV)/check.done
	@echo "set-up: torch and LLaMA-Factory (about 2 GB, one to two minutes with a warm package cache)"
	@$(INSTALL) torch
	@$(INSTALL) llamafactory
	@for name in torchvision torchaudio; do \
	  python -c "import $$name" 2>/dev/null || $(VENV)/bin/python -m pip uninstall --quiet --yes $$name 2>/dev/null; \
	done
	@python -c "import torchaudio" 2>/dev/null \
	  || echo '"""Stand-in: the published wheel does not import beside this torch."""' \
	  > "$$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchaudio.py"
	@touch $@

# DeepSpeed is published as source only and compiles its operators on first use. GaLore imports bitsandbytes.
$(VENV)/deepspeed.done: $(VENV)/train.done $(VENV)/dev.done
	@command -v $(COMPILER) >/dev/null \
	  || { echo "DeepSpeed compiles its operators with a C++ compiler: install g++" >&2; exit 1; }
	@test -e "$$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
	  || { echo "DeepSpeed compiles its operators against Python.h: install python3-dev" >&2; exit 1; }
	@echo "set-up: DeepSpeed, and the optimizers of the recipes that use others than AdamW"
	@$(INSTALL) setuptools wheel
	@DS_BUILD_OPS=0 $(INSTALL) --no-build-isolation deepspeed
	@$(INSTALL) --no-deps galore-torch apollo-torch badam bitsandbytes
	@touch $@

$(VENV)/operators.done: $(VENV)/deepspeed.done
	@echo "set-up: DeepSpeed's operators, and the bytecode of what all trainings import (a minute)"
	@python -c "import llamafactory.train.tuner, deepspeed.ops.op_builder.cpu as ops; \
	  [one().load(verbose=False) for one in (ops.CPUAdamBuilder, ops.ShareMemCommBuilder)]" \
	  >$@.log 2>&1 || { cat $@.log >&2; exit 1; }
	@touch $@

# In an environment of their own, as the parsers of SkyPilot and Kubeflow want other releases than LLaMA-Factory.
$(VENV)/engines.done: $(VENV)/venv.done tests/fixtures/engines.txt
	@echo "set-up: SkyPilot's and Kubeflow's parsers (half a minute with a warm package cache)"
	@$(PYTHON) -m venv --clear $(VENV)/engines
	@$(VENV)/engines/bin/python -m pip install -qq --no-compile --requirement tests/fixtures/engines.txt
	@touch $@
