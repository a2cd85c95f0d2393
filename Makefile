# Copyright 2026 The gemma_thor_ros developers
# SPDX-License-Identifier: Apache-2.0
#
# For machines without ROS 2: everything happens in .venv, from PyPI's ROS 2 wheels. On a ROS 2
# machine build with colcon instead (docs/install.md).

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PROMPT ?=
JSON ?=

.PHONY: help
help: ## show this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  make \1\t/' \
	  | expand -t 22
	@echo '  make run PROMPT="drive two metres forward" JSON=1: one turn; its last line is JSON'

.PHONY: setup
setup: ## make .venv and install the package, or bring them up to date
	@scripts/setup_venv.sh --venv $(VENV)

# Run it again after a change in msg/, srv/ or action/, and for each new top-level module.
.PHONY: dev
dev: ## as setup, with the Python modules linked to this tree, so that edits are live
	@scripts/setup_venv.sh --venv $(VENV) --link

.PHONY: install
install: ## as setup, with the Python modules copied (undoes dev)
	@scripts/setup_venv.sh --venv $(VENV) --copy

# Handed over by the environment, so that quotes in a prompt need no escaping.
.PHONY: run
run: export GEMMA_THOR_PROMPT := $(value PROMPT)
# A ROS domain of its own, on this machine alone, unless the environment says otherwise: two runs
# beside each other would share their topics.
run: export ROS_AUTOMATIC_DISCOVERY_RANGE := $(or $(ROS_AUTOMATIC_DISCOVERY_RANGE),LOCALHOST)
run: export ROS_DOMAIN_ID := $(or $(ROS_DOMAIN_ID),$(shell echo $$((RANDOM % 100 + 1))))
run: setup ## the node, the HTTP endpoint and a demo robot, with a chat in this terminal
	@$(VENV)/bin/gemma-thor run $(if $(filter command environment,$(firstword $(origin PROMPT))),--prompt="$$GEMMA_THOR_PROMPT") $(if $(JSON),--json)

.PHONY: test
test: setup ## the linters and all tests that need no GPU
	@scripts/run_tests.sh --venv $(VENV) lint unit model server web ros \
	  $(if $(wildcard test/kernels/test_*.py),kernels)

.PHONY: test-numpy1
test-numpy1: ## the unit and model tests with NumPy 1.26, as on a Jetson
	@scripts/setup_venv.sh --venv .venv-numpy1 --numpy1
	@scripts/run_tests.sh --venv .venv-numpy1 unit model

.PHONY: soak
soak: SOAK_S := $(or $(SOAK_S),3600)
soak: setup ## an hour (SOAK_S=seconds) of the robot's side, and the soaks of engine and HTTP; see bench/reports
	@mkdir -p bench/reports
	@$(VENV)/bin/python bench/soak.py --json bench/reports/engine_soak-$$(date +%F).json
	@$(VENV)/bin/python bench/http_soak.py --json bench/reports/http_soak-$$(date +%F).json
	@scripts/ros_sandbox.sh $(VENV)/bin/python bench/robot_soak.py --seconds $(SOAK_S)

.PHONY: grid
grid: setup ## the exactness gates at full counts, and the CUDA path on the emulator
	@$(VENV)/bin/python scripts/build_test_vocab.py
	@$(VENV)/bin/pytest --grid --require-vocab test/model test/kernels \
	  test/unit/engine/test_draft_length.py

.PHONY: lint
lint: setup ## ruff, mypy and the import rules
	@scripts/run_tests.sh --venv $(VENV) lint

.PHONY: archs
archs: setup ## compile every kernel for every architecture; rewrites docs/kernels.json
	@$(VENV)/bin/python scripts/compile_archs.py

.PHONY: lock
lock: setup ## resolve constraints.txt anew
	@$(VENV)/bin/python scripts/lock_requirements.py

.PHONY: clean
clean: ## remove what was built, and the environments
	rm -rf build install log .venv .venv-numpy1 .vocab .pytest_cache .mypy_cache .ruff_cache \
	  .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
