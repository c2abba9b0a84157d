# SPDX-License-Identifier: Apache-2.0
"""Adapters that plug vcattn into frameworks, each imported by its own name only."""
