// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

#include "tools/vcattn/generate_chart.hpp"
#include "tools/vcattn/generate_report.hpp"

namespace vca::tools {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--paper:#fbfbf9;--ink:#1c1e21;--soft:#667;--rule:#d9dade}
@media(prefers-color-scheme:dark){:root{--paper:#15171a;--ink:#e6e7ea;--soft:#9aa;--rule:#33373d}}
body{margin:0 auto;max-width:1180px;padding:2rem 1.2rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
p{max-width:46rem}.soft{color:var(--soft);font-size:.9rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
th,td{padding:.3rem .8rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
.clips{display:grid;grid-template-columns:repeat(auto-fill,minmax(260px,1fr));gap:1rem}
figure{margin:0}figcaption{font-size:.9rem;margin-top:.2rem}
video{width:100%;height:auto;image-rendering:pixelated;border-radius:3px;display:block}
img{max-width:100%;height:auto;display:block}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:1rem}
.chart{width:100%;font:12px system-ui,sans-serif}.chart text{fill:var(--ink)}
.grid{stroke:var(--rule);stroke-width:1}
button{font:inherit;padding:.3rem .9rem;margin-bottom:.8rem}
)";

// All clips start together and stay together, so that the eye compares the same frame.
constexpr const char* kScript = R"(
const clips=[...document.querySelectorAll('video')];
const together=()=>{const t=clips[0].currentTime;
for(const c of clips)if(Math.abs(c.currentTime-t)>0.05)c.currentTime=t};
document.getElementById('play').onclick=()=>{const run=clips[0].paused;together();
for(const c of clips)run?c.play():c.pause()};
clips[0].addEventListener('seeked',together);setInterval(together,1000);
)";

std::string base64(const Bytes& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = uint32_t{bytes[i]} << 16;
    if (i + 1 < bytes.size()) group |= uint32_t{bytes[i + 1]} << 8;
    if (i + 2 < bytes.size()) group |= bytes[i + 2];
    for (size_t digit = 0; digit < 4; ++digit) {
      const bool pad = i + digit > bytes.size();
      text += pad ? '=' : kDigits[group >> (18 - 6 * digit) & 63];
    }
  }
  return text;
}

std::string data_uri(const Bytes& bytes, const std::string& mime) {
  return "data:" + mime + ";base64," + base64(bytes);
}

std::string format(const char* pattern, double value) {
  char text[48];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string measure_text(const std::optional<double>& value, int digits) {
  if (!value) return "–";
  if (std::isinf(*value)) return "equal";
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, *value);
  return text;
}

std::string table(const GenerateOptions& options, const std::vector<SeedOutput>& seeds) {
  const std::vector<MeasureColumn> columns = available_columns(options, seeds);
  std::string html = "<table><tr><th>recipe</th>";
  for (const MeasureColumn& column : columns) {
    html += "<th>" + std::string(column.heading) + "</th>";
  }
  html += "<th>removed</th><th>regroupings</th><th>attention s</th><th>grouping</th></tr>";
  for (size_t r = 0; r < options.recipes.size(); ++r) {
    const RecipeRun& run = seeds.front().clips[r].run;
    html += "<tr><td>" + escape_html(run.recipe) + (r == 0 ? " (reference)" : "") + "</td>";
    for (const MeasureColumn& column : columns) {
      html += "<td>" + measure_text(mean_measure(seeds, r, column.key), column.digits) + "</td>";
    }
    const std::optional<double> energy = run.mean_energy_removed();
    html += "<td>" + (energy ? format("%.1f %%", 100 * *energy) : std::string("–")) + "</td><td>" +
            std::to_string(run.regroupings()) + "</td><td>" +
            format("%.1f", run.attention_seconds) + "</td><td>" +
            escape_html(run.attention.grouping) + "</td></tr>";
  }
  return html + "</table>";
}

std::string reasons(const SeedOutput& seed) {
  std::string html;
  if (seed.clips.size() < 2) return html;
  for (const auto& [name, measure] : seed.clips[1].run.quality) {
    if (measure.value) continue;
    html += (html.empty() ? "Not measured: " : "; ") + escape_html(name + ": " + measure.reason);
  }
  return html.empty() ? html : "<p class=\"soft\">" + html + ".</p>";
}

std::string clips(const SeedOutput& seed) {
  std::string html = "<button id=\"play\">play / pause all</button><div class=\"clips\">";
  for (const ClipOutput& clip : seed.clips) {
    std::string caption = "<b>" + escape_html(clip.run.recipe) + "</b>";
    const auto psnr = clip.run.quality.find("psnr");
    if (psnr == clip.run.quality.end()) {
      caption += ", the reference";
    } else if (psnr->second.value) {
      caption += ", " + measure_text(psnr->second.value, 2) +
                 (std::isinf(*psnr->second.value) ? "" : " dB");
    }
    html += "<figure><video muted loop autoplay playsinline src=\"" +
            data_uri(clip.video.bytes, clip.video.mime) + "\"></video><figcaption>" + caption +
            "</figcaption></figure>";
  }
  return html + "</div>";
}

std::string charts(const SeedOutput& seed, const std::vector<SeedOutput>& seeds) {
  std::vector<Bar> bars;
  std::vector<Series> error;
  std::vector<Series> energy;
  for (size_t r = 1; r < seed.clips.size(); ++r) {
    const RecipeRun& run = seed.clips[r].run;
    const std::optional<double> psnr = mean_measure(seeds, r, "psnr");
    // Levels grow linearly with the error, so bars from zero tell the truth; decibels do not.
    const double levels = std::isfinite(*psnr) ? 255 * std::pow(10.0, -*psnr / 20) : 0;
    bars.push_back({run.recipe, levels, format("%.3f", levels), r - 1});
    error.push_back({run.recipe, {}, r - 1});
    energy.push_back({run.recipe, {}, r - 1});
    bool any_energy = false;
    for (const StepRecord& record : run.steps) {
      error.back().values.push_back(record.latent_error);
      energy.back().values.push_back(record.energy_removed);
      any_energy = any_energy || record.energy_removed.has_value();
    }
    if (!any_energy) energy.pop_back();
  }
  std::string html = "<div class=\"charts\">";
  html +=
      bar_chart(bars, "RMS difference from the reference, in levels of 255 (shorter is closer)");
  html += line_chart(
      error, {"Distance from the reference's state", "denoising step", "relative L2 error", true});
  if (!energy.empty()) {
    html += line_chart(energy, {"Energy of V taken out by block means, mean over heads",
                                "denoising step", "share", false});
  }
  return html + "</div>";
}

}  // namespace

std::string generate_page(const GenerateOptions& options, const tiny_video_dit::ModelConfig& config,
                          const std::vector<SeedOutput>& seeds) {
  const SeedOutput& seed = seeds.front();
  std::string html =
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>vcattn generate</title><style>";
  html += kStyle;
  html += "</style></head><body><h1>The same clip through each recipe</h1>";
  html += "<p class=\"soft\">vcattn " + std::string(vca_version()) + ", specification " +
          std::to_string(vca_spec_version()) + ". Class " + escape_html(options.class_name) +
          ", seed " + std::to_string(seed.seed) + ", " + std::to_string(options.steps) +
          " steps, guidance " + format("%g", options.guidance) + ", " +
          std::to_string(config.grid.tokens()) + " tokens, " + std::to_string(config.layers) +
          " layers of " + std::to_string(config.heads) + " heads, " +
          std::to_string(options.threads) + " threads.";
  if (seeds.size() > 1)
    html += " Measures are means over " + std::to_string(seeds.size()) + " seeds.";
  html +=
      "</p><p>Every clip starts from the same noise; only the arithmetic of attention differs. "
      "The reference is attention in BF16. PSNR, SSIM, VIF and SSIMULACRA 2 are higher for a "
      "closer clip; SSIMULACRA, Butteraugli and LPIPS are lower. <i>Removed</i> is the share of "
      "the values' energy that block means take out before quantisation.</p>";
  if (seeds.size() == 1) {
    html +=
        "<p><b>One seed is one draw</b>: on another seed the recipes may stand in another order. "
        "Averages over many seeds: <code>docs/quality-seeds.md</code>.</p>";
  }
  html += table(options, seeds) + reasons(seed);
  html += "<h2>Clips</h2>" + clips(seed);
  if (seed.clips.size() > 1) html += "<h2>Numbers</h2>" + charts(seed, seeds);
  html += "<h2>Side by side</h2><img alt=\"one row of frames per recipe\" src=\"" +
          data_uri(seed.side_by_side_png, "image/png") + "\">";
  if (!seed.difference_png.empty()) {
    html += "<h2>Difference from the reference, times " + std::to_string(kDifferenceGain) +
            "</h2><p class=\"soft\">Grey is equal.</p><img alt=\"amplified differences\" src=\"" +
            data_uri(seed.difference_png, "image/png") + "\">";
  }
  if (!config.attribution.empty() || !config.licence.empty()) {
    html += "<h2>Model</h2><p class=\"soft\">" + escape_html(config.attribution) + " " +
            escape_html(config.licence) + "</p>";
  }
  html += "<script>";
  html += kScript;
  return html + "</script></body></html>\n";
}

}  // namespace vca::tools
