# SPDX-License-Identifier: Apache-2.0
"""HunyuanVideo-1.5 text to video with vcattn in diffusers: the mask over padded text becomes a mask
over keys, so no mask of queries times keys is made.

    python examples/hunyuan_video15.py --model FOLDER_OR_NAME --prompt "a red kite" --out kite.mp4
    python examples/hunyuan_video15.py --tiny --out /tmp/noise.mp4
"""

from pipeline_example import main

if __name__ == "__main__":
    main(
        tiny="hunyuan",
        model="hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-720p_t2v",
        call={"height": 720, "width": 1280, "num_frames": 121, "num_inference_steps": 50},
        fps=24,
    )  # fmt: skip
