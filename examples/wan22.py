# SPDX-License-Identifier: Apache-2.0
"""Wan2.2 text to video with vcattn in diffusers.

    python examples/wan22.py --model Wan-AI/Wan2.2-T2V-A14B-Diffusers --prompt "a red kite" --out kite.mp4
    python examples/wan22.py --tiny --out /tmp/noise.mp4      # small random model, CPU, seconds
"""

from pipeline_example import main

if __name__ == "__main__":
    main(
        tiny="wan",
        model="Wan-AI/Wan2.2-T2V-A14B-Diffusers",
        call={"height": 720, "width": 1280, "num_frames": 81, "num_inference_steps": 40,
              "guidance_scale": 4.0, "guidance_scale_2": 3.0},
        fps=16,
    )  # fmt: skip
