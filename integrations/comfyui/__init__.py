# SPDX-License-Identifier: Apache-2.0
"""ComfyUI node pack: copy or link this folder into ComfyUI/custom_nodes; vcattn must be installed."""

from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
