# SPDX-License-Identifier: Apache-2.0
"""The bundled video DiT: its file is what MODEL.md says, and a second implementation reproduces the golden pass.

The forward pass below is written from MODEL.md in numpy and FP64, independently of the PyTorch model.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "tiny_video_dit"
WEIGHTS = EXAMPLE / "model" / "tiny_video_dit.safetensors"
GOLDEN = ROOT / "tests" / "golden" / "tiny_dit_forward.safetensors"
sys.path.insert(0, str(EXAMPLE))

from config import Config  # noqa: E402
from noise import normals, philox_words, time_grid  # noqa: E402

DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64}


def read_safetensors(path: pathlib.Path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    meta = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        blob = raw[8 + size + begin : 8 + size + end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(blob, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(blob, DTYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return header, meta, tensors


@pytest.fixture(scope="module")
def model():
    header, meta, tensors = read_safetensors(WEIGHTS)
    return header, Config.from_metadata(meta), {k: v.astype(np.float64) for k, v in tensors.items()}


@pytest.fixture(scope="module")
def golden():
    _, meta, tensors = read_safetensors(GOLDEN)
    return meta, tensors


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def layer_norm(x, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def round_bf16(x):
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def rope_angles(config, grid):
    position = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), -1).reshape(-1, 3)
    angles = []
    for axis, channels in enumerate(config.rope_split):
        rates = config.rope_theta ** (-np.arange(0, channels, 2) / channels)
        angles.append(position[:, axis, None] * rates)
    return np.concatenate(angles, 1)[:, None, :]


def rotate(x, angles):
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * np.cos(angles) - x[..., 1::2] * np.sin(angles)
    out[..., 1::2] = x[..., 0::2] * np.sin(angles) + x[..., 1::2] * np.cos(angles)
    return out


def forward(config, w, x, t, y, grid, round_qkv):
    def linear(name, v):
        return v @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def rms(v, weight):
        return v / np.sqrt((v**2).mean(-1, keepdims=True) + config.norm_eps) * weight

    half = config.dim // 2
    rates = np.exp(-np.log(config.time_max_period) * np.arange(half) / half)
    angle = config.time_scale * float(np.float32(t)) * rates
    features = np.concatenate([np.cos(angle), np.sin(angle)])
    cond = linear("time_mlp.2", silu(linear("time_mlp.0", features))) + w["class_embed"][y]
    s = silu(cond)

    _, full_h, full_w = config.grid
    space = w["pos_space"].reshape(full_h, full_w, -1)[: grid[1], : grid[2]]
    place = w["pos_time"][: grid[0], None, None] + space[None]
    z = linear("patch_embed", x.astype(np.float64)) + place.reshape(len(x), -1)
    states, angles = [z], rope_angles(config, grid)
    for i in range(config.layers):
        b = f"blocks.{i}"
        sh1, sc1, g1, sh2, sc2, g2 = linear(f"{b}.mod", s).reshape(6, -1)
        u = layer_norm(z, config.norm_eps) * (1 + sc1) + sh1
        q, k, v = linear(f"{b}.qkv", u).reshape(-1, 3, config.heads, config.head_dim).swapaxes(0, 1)
        q = rotate(rms(q, w[f"{b}.q_norm.weight"]), angles)
        k = rotate(rms(k, w[f"{b}.k_norm.weight"]), angles)
        if round_qkv:
            q, k, v = map(round_bf16, (q, k, v))
        scores = np.einsum("nhd,mhd->hnm", q, k) / np.sqrt(config.head_dim)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        o = np.einsum("hnm,mhd->nhd", p / p.sum(-1, keepdims=True), v)
        z = z + g1 * linear(f"{b}.proj", o.reshape(len(x), -1))
        u = layer_norm(z, config.norm_eps) * (1 + sc2) + sh2
        z = z + g2 * linear(f"{b}.fc2", gelu(linear(f"{b}.fc1", u)))
        states.append(z)
    sh, sc = linear("final.mod", s).reshape(2, -1)
    out = linear("final.proj", layer_norm(z, config.norm_eps) * (1 + sc) + sh)
    return cond, states, out


def rel_l2(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def test_file_has_exactly_the_tensors_of_the_page(model):
    header, c, _ = model
    t, h, w = c.grid
    width = c.heads * c.head_dim
    linears = {
        "patch_embed": (c.dim, c.patch_elems),
        "time_mlp.0": (c.dim, c.dim),
        "time_mlp.2": (c.dim, c.dim),
        "final.mod": (2 * c.dim, c.dim),
        "final.proj": (c.patch_elems, c.dim),
    }
    expected = {
        "pos_space": [h * w, c.dim],
        "pos_time": [t, c.dim],
        "class_embed": [len(c.classes) + 1, c.dim],
    }
    for i in range(c.layers):
        linears |= {
            f"blocks.{i}.mod": (6 * c.dim, c.dim),
            f"blocks.{i}.qkv": (3 * width, c.dim),
            f"blocks.{i}.proj": (c.dim, width),
            f"blocks.{i}.fc1": (c.mlp_dim, c.dim),
            f"blocks.{i}.fc2": (c.dim, c.mlp_dim),
        }
        expected |= {f"blocks.{i}.{n}_norm.weight": [c.head_dim] for n in "qk"}
    for name, (out, into) in linears.items():
        expected |= {f"{name}.weight": [out, into], f"{name}.bias": [out]}
    assert {k: v["shape"] for k, v in header.items()} == expected
    assert {v["dtype"] for v in header.values()} == {"BF16"}


def test_size_and_shape_are_those_of_the_large_models(model):
    _, c, _ = model
    assert WEIGHTS.stat().st_size <= 16 * 2**20
    assert c.head_dim == 128 and c.layers >= 4 and c.tokens >= 4096
    assert c.tokens % 128 != 0, "the clip should exercise the tail block"
    assert c.rope_split == (44, 42, 42)


def test_metadata_survives_a_round_trip(model):
    _, c, _ = model
    assert Config.from_metadata(c.to_metadata()) == c
    stored = json.loads((EXAMPLE / "model" / "config.json").read_text())
    assert stored == c.to_metadata()


def test_other_files_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="format"):
        Config.from_metadata({"format": "something"})
    meta = Config().to_metadata()
    del meta["heads"]
    with pytest.raises(ValueError, match="heads"):
        Config.from_metadata(meta)


def test_golden_belongs_to_the_weights(golden):
    meta, _ = golden
    assert meta["weights_sha256"] == hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    assert GOLDEN.stat().st_size <= 300 * 1024


@pytest.mark.parametrize("rounded", [False, True])
def test_second_implementation_reproduces_the_golden_pass(model, golden, rounded):
    _, config, weights = model
    meta, want = golden
    grid = tuple(int(n) for n in meta["grid"].split(","))
    cond, states, out = forward(
        config, weights, want["x"], float(meta["t"]), int(meta["class"]), grid, rounded
    )
    # The golden pass is FP32: a sum of n <= 1024 terms in any order is off by at most about
    # sqrt(1024) * 2^-24 = 2e-6 of its size; some 10 such stages in each of the 4 blocks, each adding to
    # a residual stream that LayerNorm rescales, add in quadrature to 2e-6 * sqrt(40) = 1.2e-5.
    fp32 = 1.2e-5
    # With q, k, v rounded to BF16, an FP32 difference of relative size e moves a value across a
    # rounding border with probability e / 2^-8, and then by 2^-8: in the mean square e * 2^-8, so the
    # operands differ by sqrt(fp32 * 2^-8) = 2.2e-4 at most, which attention passes on.
    limit = 2.2e-4 if rounded else fp32
    assert rel_l2(cond, want["cond"]) <= fp32
    assert rel_l2(out, want["out_bf16_qkv" if rounded else "out"]) <= limit
    if not rounded:
        assert rel_l2(states[-1], want["z_final"]) <= fp32
        means = np.array([np.abs(z).mean() for z in states])
        assert np.abs(means / want["block_mean_abs"] - 1).max() <= fp32


def test_rounding_q_k_v_is_visible_but_small(golden):
    _, want = golden
    # Three operands, each off by at most 2^-9 relative: a few times 2^-9, and never nothing.
    assert 0 < rel_l2(want["out_bf16_qkv"], want["out"]) <= 4 * 2.0**-9


def test_noise_is_philox_4x32_10(golden):
    # Known answers of the Random123 distribution: all-zero counter and key.
    assert [f"{w:08x}" for w in philox_words(0, 0, 1)[0]] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    meta, want = golden
    seed = int(meta["seed"])
    assert (philox_words(seed, 0, 4).reshape(-1).astype(np.int64) == want["noise_words"]).all()
    made = normals(seed, want["x"].size).reshape(want["x"].shape)
    # log, sqrt, cos and sin in FP64 may differ in their last bit between libraries: after rounding to
    # FP32 that is one FP32 step at most.
    assert (np.abs(made - want["x"]) <= np.spacing(np.abs(want["x"]))).all()


def test_noise_depends_on_seed_and_index_only():
    long = normals(7, 1000)
    assert (normals(7, 10) == long[:10]).all()
    assert (normals(7 + 2**32, 1000) != long).mean() > 0.99, "the high half of the seed counts"
    many = normals(3, 400_000).astype(np.float64)
    # Five standard errors of the mean, the variance and the fourth moment (variances 1, 2, 96).
    n = np.sqrt(len(many))
    assert abs(many.mean()) < 5 / n
    assert abs(many.var() - 1) < 5 * np.sqrt(2) / n
    assert abs((many**4).mean() - 3) < 5 * np.sqrt(96) / n


def test_time_grid(model, golden):
    _, config, _ = model
    _, want = golden
    grid = time_grid(10, config.shift)
    assert grid[0] == 1 and grid[-1] == 0 and (np.diff(grid) < 0).all()
    assert np.abs(grid - want["time_grid"]).max() <= 2.0**-52
    assert np.allclose(time_grid(4, 1.0), [1, 0.75, 0.5, 0.25, 0], atol=2.0**-52)


def test_attributions_are_repeated_wherever_the_material_goes():
    _, meta, _ = read_safetensors(WEIGHTS)
    clips = sorted(p.name for p in (EXAMPLE / "clips").glob("*.mp4"))
    assert len(clips) == 4
    licences = (EXAMPLE / "clips" / "LICENSES.md").read_text()
    card = (EXAMPLE / "model" / "README.md").read_text()
    assert all(name in licences and name in card for name in clips)
    for text in (licences, card, meta["attribution"]):
        for owner in ("2008, Blender Foundation", "www.bigbuckbunny.org", "Intel IoT DevKit", "NASA"):
            assert owner in text
        assert "CC BY 3.0" in text and "CC BY 4.0" in text
