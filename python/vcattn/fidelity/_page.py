# SPDX-License-Identifier: Apache-2.0
"""The page of a fidelity run: a table of means, then the clips side by side."""

from __future__ import annotations

import html

_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, CanvasText 20%, Canvas); }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 110rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.clip { border-top: 1px solid var(--line); padding: 1rem 0; }
.row { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; flex: 1 1 18rem; } video { width: 100%; }
figcaption { font-variant-numeric: tabular-nums; }
"""
_SCRIPT = """
// The clips of a row start together and stay together.
document.querySelectorAll('.row').forEach(row => {
  const videos = [...row.querySelectorAll('video')];
  videos.forEach(video => {
    for (const [event, act] of [['play', v => v.play()], ['pause', v => v.pause()],
                                ['seeked', v => { v.currentTime = video.currentTime; }]])
      video.addEventListener(event, e => {
        if (e.isTrusted && document.activeElement === video)
          videos.filter(v => v !== video).forEach(act);
      });
  });
});
"""
UNITS = {"psnr": "PSNR, dB", "ssim": "SSIM", "lpips": "LPIPS"}


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def page(result: dict) -> str:
    """HTML of the result that ``run`` writes as JSON; clips are linked by their relative paths."""
    e = html.escape
    measures = list(dict.fromkeys(m for s in result["summary"].values() for m in s))
    head = "".join(f"<th>{e(UNITS.get(m, m.replace('_', ' ')))}</th>" for m in measures)
    rows = "".join(
        f"<tr><td>{e(name)}</td>"
        + "".join(f"<td>{_number(scores.get(m))}</td>" for m in measures)
        + "</tr>"
        for name, scores in result["summary"].items()
    )
    clips = []
    for clip in result["clips"]:
        figures = []
        for name, entry in clip["backends"].items():
            scores = ", ".join(
                f"{UNITS.get(m, m)} {_number(v)}" for m, v in entry.get("measures", {}).items()
            )
            text = f"{e(name)}: {e(scores)}" if scores else f"{e(name)} (reference)"
            figures.append(
                f'<figure><video src="{e(entry["file"])}" controls loop muted playsinline '
                f'preload="metadata"></video><figcaption>{text}</figcaption></figure>'
            )
        clips.append(
            f'<section class="clip"><p>{clip["index"]}: {e(clip["prompt"])} '
            f'(seed {clip["seed"]})</p><div class="row">{"".join(figures)}</div></section>'
        )
    settings = "".join(
        f"<tr><td>{e(str(k))}</td><td>{e(str(v))}</td></tr>" for k, v in result["settings"].items()
    )
    reference = e(result["reference"])
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>vcattn fidelity</title><style>{_STYLE}</style>"
        f"<h1>Fidelity against {reference}</h1>"
        f"<p>{len(result['clips'])} clips; same model, prompt, seed and steps; only the attention "
        f"differs. Means over the clips; PSNR of equal clips is infinite and left out.</p>"
        f"<table><tr><th>attention</th>{head}</tr>{rows}</table>{''.join(clips)}"
        f"<h2>Settings</h2><table>{settings}</table><script>{_SCRIPT}</script></html>\n"
    )
