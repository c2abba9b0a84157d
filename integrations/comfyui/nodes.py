# SPDX-License-Identifier: Apache-2.0
"""The node "VC-Attention": a model whose attention runs on vcattn."""

from __future__ import annotations

from vcattn.integrations.comfyui import AttentionOverride

RECIPES = ["vc8", "vc8+had", "vc8-hq", "vc8-turbo", "vc8-exp", "sage2"]


MOST_LAYERS = 10_000  # a range beyond that is a slip of the finger


def parse_layers(text: str) -> list[int]:
    """ "0, 1, 38-39, -1" as numbers; ValueError names the part that is none."""
    layers: list[int] = []
    for part in filter(None, (piece.strip() for piece in str(text or "").split(","))):
        first, dash, last = part[1:].partition("-")
        try:
            begin = int(part[0] + first)
            end = int(last) if dash else begin
        except ValueError:
            raise ValueError(f"skip_layers: '{part}' is not a number or a range like 3-5") from None
        if not begin <= end < begin + MOST_LAYERS:
            raise ValueError(f"skip_layers: the range '{part}' is empty or too long; allowed: like 3-5")
        layers += range(begin, end + 1)
    return layers


class VCAttention:
    """Patches a clone of the model; the original stays as it is."""

    CATEGORY = "model/patch"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    DESCRIPTION = (
        "Runs the model's long attention calls on vcattn (VC-Attention, 8 bit). Short calls, such as "
        "cross attention to the prompt, stay with ComfyUI."
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict:
        return {
            "required": {
                "model": ("MODEL",),
                "recipe": (RECIPES, {"default": "vc8"}),
                "window": (
                    "INT",
                    {
                        "default": 0, "min": -1, "max": 1000,
                        "tooltip": "Steps in which values are regrouped. 0: the first quarter. "
                        "-1: every call groups anew.",
                    },
                ),
                "skip_layers": (
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "Blocks that stay in full precision: 0, 1, 38-39, -1 (the last).",
                    },
                ),
                "first_steps": (
                    "INT",
                    {
                        "default": 0, "min": 0, "max": 1000,
                        "tooltip": "Steps at the start that stay in full precision.",
                    },
                ),
            }
        }  # fmt: skip

    def patch(self, model, recipe: str, window: int, skip_layers: str, first_steps: int) -> tuple:
        override = AttentionOverride(recipe, window, parse_layers(skip_layers), first_steps)
        patched = model.clone()
        # Dictionaries of our own: the clone may share the original's.
        options = dict(patched.model_options.get("transformer_options", {}))
        options["optimized_attention_override"] = override
        patched.model_options = dict(patched.model_options) | {"transformer_options": options}
        return (patched,)


NODE_CLASS_MAPPINGS = {"VCAttention": VCAttention}
NODE_DISPLAY_NAME_MAPPINGS = {"VCAttention": "VC-Attention"}
