# SPDX-License-Identifier: Apache-2.0
"""Train the bundled video DiT: rectified flow on the clips in clips/ and on procedural motion.

The prediction is the clean clip; the loss is its squared error weighted to the squared error of the
velocity. Interrupting (Ctrl-C, SIGTERM) or running out of time still writes a checkpoint and the weights.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import data
from config import TINY, Config
from model import VideoDit, patchify
from pictures import loss_curve
from sample import precision
from weights import load_weights, save_weights

HERE = Path(__file__).parent
LOG_COLUMNS = ("step", "seconds", "lr_factor", "velocity_loss", "x0_mse")
EMA_DECAY = 0.999
# The velocity's weight 1/t^2 is capped: below this noise level it would only ask for camera noise.
WEIGHT_MIN_T = 0.1
CLASS_DROPOUT = 0.1
# Less than the sampler's shift: few-step sampling needs more steps near noise than training samples do.
TRAIN_SHIFT = 4.0
# Muon's update is orthogonal and scaled to AdamW's size; it bears a larger step than AdamW.
MUON_LR_RATIO = 2.5


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, log and curve")
    parser.add_argument("--minutes", type=float, default=8.0, help="wall-clock budget, all runs together")
    parser.add_argument("--steps", type=int, help="stop after this many steps (default: time decides)")
    parser.add_argument("--pause-minutes", type=float, help="stop early with a checkpoint, to resume later")
    parser.add_argument("--pause-steps", type=int, help="the same, at this step")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="adamw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--init", type=Path, help="start from these weights instead of random ones")
    parser.add_argument("--class-weights", help="share of each class in a batch; default: even")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--checkpoint", type=Path, help="default: OUT/checkpoint.pt")
    parser.add_argument("--cache", type=Path, help="cached frames; default: OUT/frames.npz")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to test this script on a CPU")
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args(argv)


class Optimizers:
    """Muon for the matrices of the blocks, AdamW for everything else (or AdamW alone)."""

    def __init__(self, model: VideoDit, kind: str, lr: float):
        matrices, rest = [], []
        for name, parameter in model.named_parameters():
            hidden = name.startswith("blocks.") and parameter.dim() == 2 and ".mod." not in name
            (matrices if hidden and kind == "muon" else rest).append(parameter)
        fused = rest[0].is_cuda
        self.parts = [torch.optim.AdamW(rest, lr, betas=(0.9, 0.99), weight_decay=0.0, fused=fused)]
        if matrices:
            self.parts.append(
                torch.optim.Muon(matrices, MUON_LR_RATIO * lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
            )
        self.lrs = [part.param_groups[0]["lr"] for part in self.parts]

    def step(self, factor: float) -> None:
        for part, lr in zip(self.parts, self.lrs):
            for group in part.param_groups:
                group["lr"] = lr * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self):
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def lr_factor(step: int, progress: float) -> float:
    """Linear warm-up over 100 steps, constant, then a cosine to 1 % over the last 60 % of the run."""
    warm = min(1.0, (step + 1) / 100)
    late = min(max((progress - 0.4) / 0.6, 0.0), 1.0)
    return warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * late)))


def draw_times(count: int, generator: torch.Generator, device) -> torch.Tensor:
    """Three quarters logit-normal, one quarter uniform, then shifted towards noise."""
    normal = torch.randn(count, generator=generator, device=device).sigmoid()
    uniform = torch.rand(count, generator=generator, device=device)
    pick = torch.rand(count, generator=generator, device=device) < 0.25
    u = torch.where(pick, uniform, normal).clamp(1e-3, 1.0)
    return TRAIN_SHIFT * u / (1 + (TRAIN_SHIFT - 1) * u)


class Trainer:
    def __init__(self, args: argparse.Namespace):
        self.args, self.device = args, torch.device(args.device)
        self.config = TINY if args.tiny else Config()
        args.out.mkdir(parents=True, exist_ok=True)
        self.checkpoint = args.checkpoint or args.out / "checkpoint.pt"
        torch.manual_seed(args.seed)
        cache = args.cache or args.out / "frames.npz"
        self.windows = data.load(self.config, cache, progress=tqdm)
        self.frames = torch.from_numpy(self.windows.frames).to(self.device)
        self.model = VideoDit(self.config).to(self.device)
        if args.init:
            self.model.load_state_dict(load_weights(args.init).state_dict())
        self.weights = None
        if args.class_weights:
            shares = np.array([float(w) for w in args.class_weights.split(",")])
            self.weights = shares / shares.sum()
        self.ema = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizers = Optimizers(self.model, args.optimizer, args.lr)
        self.rng = np.random.default_rng(args.seed)
        self.generator = torch.Generator(self.device).manual_seed(args.seed)
        self.step, self.spent_s, self.rows = 0, 0.0, []
        if args.resume:
            self.load_checkpoint()
        self.forward = self.model if args.no_compile else torch.compile(self.model)
        self.stop = False

    def save_checkpoint(self) -> None:
        state = {
            "step": self.step,
            "spent_s": self.spent_s,
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizers": self.optimizers.state_dict(),
            "numpy_rng": self.rng.bit_generator.state,
            "torch_rng": self.generator.get_state(),
            "rows": self.rows,
        }
        aside = self.checkpoint.with_name(self.checkpoint.name + ".part")
        torch.save(state, aside)
        os.replace(aside, self.checkpoint)

    def load_checkpoint(self) -> None:
        if not self.checkpoint.is_file():
            raise FileNotFoundError(f"--resume: {self.checkpoint} does not exist")
        # Only files written by save_checkpoint are read; they hold Python objects (generator states).
        state = torch.load(self.checkpoint, map_location="cpu", weights_only=False)
        self.step, self.spent_s, self.rows = state["step"], state["spent_s"], state["rows"]
        self.model.load_state_dict(state["model"])
        self.ema.load_state_dict(state["ema"])
        self.optimizers.load_state_dict(state["optimizers"])
        self.rng.bit_generator.state = state["numpy_rng"]
        self.generator.set_state(state["torch_rng"])

    def batch(self):
        config, count = self.config, self.args.batch
        indices, classes = self.windows.draw(self.rng, count, self.weights)
        clip = self.frames[torch.from_numpy(indices).to(self.device, non_blocking=True)]
        clean = patchify(config, clip.float() / 127.5 - 1)
        y = torch.from_numpy(classes).to(self.device)
        dropped = torch.rand(count, generator=self.generator, device=self.device) < CLASS_DROPOUT
        y = torch.where(dropped, torch.full_like(y, config.null_class), y)
        t = draw_times(count, self.generator, self.device)
        noise = torch.randn(clean.shape, generator=self.generator, device=self.device)
        return clean, torch.lerp(clean, noise, t[:, None, None]), t, y

    def train_step(self, factor: float) -> torch.Tensor:
        clean, noisy, t, y = self.batch()
        with precision(self.device, "bf16"):
            guess = self.forward(noisy, t, y)
        error = (guess.float() - clean).square().mean((1, 2))
        loss = (error / t.clamp_min(WEIGHT_MIN_T).square()).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers.step(factor)
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        pairs = list(self.ema.parameters()), list(self.model.parameters())
        torch._foreach_lerp_(*pairs, 1 - decay)
        return torch.stack([loss.detach(), error.detach().mean()])

    def write_results(self) -> None:
        out = self.args.out
        save_weights(self.ema, out / "tiny_video_dit.safetensors")
        (out / "config.json").write_text(json.dumps(self.config.to_metadata(), indent=2) + "\n")
        with open(out / "loss.csv", "w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(LOG_COLUMNS)
            writer.writerows(self.rows)
        if len(self.rows) > 1:
            loss_curve(out / "loss.csv", out / "loss.png")

    def run(self) -> None:
        args, log_every = self.args, 1 if self.args.tiny else 25
        budget_s, before_s, started = args.minutes * 60, self.spent_s, time.monotonic()
        pause_s = budget_s if args.pause_minutes is None else args.pause_minutes * 60
        saved_s, recent = self.spent_s, []
        bar = tqdm(total=args.steps, initial=self.step, desc="train", mininterval=5)
        last_steps = {args.steps, args.pause_steps}
        while not self.stop and self.step not in last_steps and self.spent_s < min(budget_s, pause_s):
            progress = max(self.spent_s / budget_s, self.step / args.steps if args.steps else 0.0)
            factor = lr_factor(self.step, progress)
            recent.append(self.train_step(factor))
            self.step += 1
            if self.step % log_every == 0:
                loss, mse = torch.stack(recent).mean(0).tolist()  # waits for the device
                if not math.isfinite(loss):
                    raise FloatingPointError(f"loss is {loss} at step {self.step}")
                recent = []
                self.rows.append(
                    (self.step, f"{self.spent_s:.1f}", f"{factor:.4f}", f"{loss:.6f}", f"{mse:.6f}")
                )
                bar.set_postfix(loss=f"{loss:.4f}", mse=f"{mse:.5f}", refresh=False)
            self.spent_s = before_s + time.monotonic() - started
            bar.update()
            if self.spent_s - saved_s > 60:
                saved_s = self.spent_s
                self.save_checkpoint()
        bar.close()
        self.save_checkpoint()
        self.write_results()


def main(argv: list[str]) -> int:
    args = parse(argv)
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(args)
    interrupted = []

    def stop(number, _frame):
        interrupted.append(number)
        trainer.stop = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    trainer.run()
    last = trainer.rows[-1] if trainer.rows else None
    print(f"{trainer.step} steps, {trainer.spent_s:.0f} s, last log {last}, results in {args.out}")
    return 128 + interrupted[0] if interrupted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
