// SPDX-License-Identifier: Apache-2.0
// The style sheet of the report. Colours of charts are variables here, twice: light and dark.
#pragma once

namespace vca::tools {

inline constexpr const char* kReportStyle = R"css(
:root{color-scheme:light dark;
  --bg:#f6f7f9;--card:#fff;--ink:#16202c;--soft:#647081;--line:#e3e7ec;--axis:#aeb7c2;
  --total:#2b3a4d;--qk:#3b82c4;--p:#e08a1e;--v:#2a9d78;--heat:#3a56b5;--on:#fff;--good:#1f7f5f;
  --own:#b9c6d8;--shadow:0 1px 2px rgba(20,30,50,.06),0 6px 24px rgba(20,30,50,.05)}
@media (prefers-color-scheme:dark){:root{
  --bg:#10151c;--card:#18202a;--ink:#e6ebf1;--soft:#94a1b1;--line:#27313e;--axis:#4b5868;
  --total:#c9d4e2;--qk:#5aa5ea;--p:#f2a742;--v:#45c298;--heat:#7f9bff;--on:#10151c;--good:#57d3a6;
  --own:#3d4d63;--shadow:none}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
  font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1160px;margin:0 auto;padding:32px 20px 64px}
header h1{margin:0;font-size:28px;letter-spacing:-.02em;line-height:1.2;overflow-wrap:anywhere}
header p{margin:6px 0 0;color:var(--soft)}
.chips{display:flex;flex-wrap:wrap;gap:6px;margin:14px 0 0}
.chips span{background:var(--card);border:1px solid var(--line);border-radius:99px;
  padding:2px 11px;font-size:13px;color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:14px;
  margin:24px 0 0}
.card,section{background:var(--card);border:1px solid var(--line);border-radius:14px;
  box-shadow:var(--shadow)}
.card{padding:16px 18px}
.card b{display:block;font-size:27px;letter-spacing:-.02em;line-height:1.15;
  font-variant-numeric:tabular-nums}
.card.good b{color:var(--good)}
.card small{display:block;color:var(--soft);margin-top:4px;line-height:1.4}
.card em{display:block;font-style:normal;font-size:12px;text-transform:uppercase;
  letter-spacing:.06em;color:var(--soft);margin-bottom:6px}
section{padding:22px 24px 24px;margin:18px 0 0}
section h2{margin:0 0 2px;font-size:19px;letter-spacing:-.01em}
section p{margin:4px 0 14px;color:var(--soft);max-width:78ch}
.scroll{overflow-x:auto}
.scroll>svg{min-width:620px}
svg{display:block;width:100%;height:auto;font-family:inherit}
svg text{fill:var(--ink);font-size:13px}
svg .name{font-size:14px;font-weight:600}
svg .value{font-weight:600;font-variant-numeric:tabular-nums}
svg .small{font-size:12px}svg .tiny{font-size:11px}
svg .soft{fill:var(--soft)}svg .on{fill:var(--on);font-weight:600}
svg .grid{stroke:var(--line)}svg .axis{stroke:var(--axis)}
svg .total{fill:var(--total)}svg .qk{fill:var(--qk)}svg .p{fill:var(--p)}svg .v{fill:var(--v)}
svg .whisker{stroke:var(--axis);stroke-width:2;stroke-linecap:round}
svg .middle{fill:var(--qk);fill-opacity:.45}svg .dot{fill:var(--total)}
svg .heat{fill:var(--heat)}
svg .codes{fill:var(--p);fill-opacity:.85}
svg .own{fill:var(--own);fill-opacity:.75}
svg .mapped{fill:none;stroke:var(--p);stroke-width:2;stroke-linejoin:round}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(270px,1fr));gap:14px}
.tile{margin:0;border:1px solid var(--line);border-radius:10px;padding:12px 12px 8px}
.tile figcaption{display:flex;justify-content:space-between;gap:10px;font-size:13px;
  margin-bottom:8px;flex-wrap:wrap}
.tile figcaption span{color:var(--soft)}
.key{display:inline-block;width:12px;height:12px;border-radius:3px;vertical-align:-1px;
  margin:0 4px 0 2px}
.key.own{background:var(--own)}.key.mapped{background:var(--p);height:3px;vertical-align:4px}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:7px 6px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--soft);font-size:12px}
th:first-child,td:first-child{text-align:left;font-weight:600}
tbody tr:last-child td{border-bottom:0}
tr.best td:nth-child(2){color:var(--good);font-weight:600}
details{margin-top:16px}summary{cursor:pointer;color:var(--soft)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:6px 18px;margin:8px 0 0}
dt{font-weight:600}dd{margin:0;color:var(--soft)}
footer{margin-top:26px;color:var(--soft);font-size:13px}
@media (max-width:640px){main{padding:20px 12px 40px}section{padding:16px 14px}
  dl{grid-template-columns:1fr}dd{margin-bottom:8px}}
@media print{body{background:#fff}section,.card{box-shadow:none;break-inside:avoid}}
)css";

}  // namespace vca::tools
