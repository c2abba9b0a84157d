# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` do all their set-up themselves on a bare Debian 12 or 13 (as root, with
# git and make). `make build` only builds.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

JOBS ?= $(shell nproc)
DEMO_OUT ?= out/demo
DEMO_COMMAND ?= build/bin/vcattn generate --demo --out $(DEMO_OUT)

.PHONY: help setup setup-cuda setup-dev setup-torch build demo test test-torch quality wheel clang cuda asan check-format format install clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)$$/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup:  ## install what is missing: Debian packages (root), Python packages in .venv
	@scripts/setup.sh

setup-cuda:  ## setup plus a CUDA compiler where there is none (no GPU needed)
	@scripts/setup.sh --cuda

setup-dev:  ## setup plus clang and clang-format
	@scripts/setup.sh --dev

setup-torch:  ## torch and diffusers in .venv-torch (3 GB), for test-torch
	@scripts/setup.sh --torch

build:  ## build only: build/bin/vcattn and build/lib/libvcattn.so
	@scripts/build.sh host $(JOBS)

demo: setup build  ## the main job: clips from the bundled video DiT, each recipe against the reference
	$(DEMO_COMMAND)

test: setup-cuda build  ## every test: ctest, then pytest
	@scripts/run_tests.sh

test-torch: setup build setup-torch  ## tests of the Python package with torch and diffusers
	@scripts/run_torch_tests.sh

quality: setup build  ## repeat the demo on many seeds; table and plot
	@test -x scripts/quality.sh || { echo "scripts/quality.sh is not there" >&2; exit 1; }
	scripts/quality.sh

# WHEEL_LIBRARY=build/lib/libvcattn.so makes one without the CUDA kernels, in seconds.
wheel: $(if $(WHEEL_LIBRARY),setup,setup-cuda cuda)  ## dist/vcattn-*.whl: the Python package with the library inside
	@scripts/make_wheel.sh $(or $(WHEEL_LIBRARY),build-cuda/lib/libvcattn.so)

clang:  ## build everything with clang (build-clang/)
	@scripts/build.sh host-clang $(JOBS)

cuda: setup-cuda  ## build with the CUDA kernels (build-cuda/)
	@scripts/build.sh cuda-sm90 $(JOBS)

asan: setup  ## build with ASan and UBSan (build-asan/) and run ctest
	@scripts/build.sh host-asan $(JOBS)
	ctest --preset host-asan

check-format:  ## is every C and C++ file formatted?
	@scripts/check_format.sh

format:  ## format them
	@scripts/check_format.sh --fix

install: build  ## cmake --install, PREFIX=/usr/local
	cmake --install build --prefix $(or $(PREFIX),/usr/local)

clean:  ## remove build trees and outputs (keeps .venv)
	rm -rf build build-clang build-cuda build-asan build-tsan out .cache
