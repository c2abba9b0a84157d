# SPDX-License-Identifier: Apache-2.0
"""Video models at full size, end to end on one GPU: parts of bench/e2e.py."""
