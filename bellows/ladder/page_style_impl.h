#pragma once

namespace bellows::train {

/// Of ladder_page(). Colours are variables, so that light and dark share every rule.
inline constexpr const char* ladder_style = R"(
:root { color-scheme: light dark;
  --paper: #faf8f5; --card: #ffffff; --ink: #22262b; --soft: #59616b; --line: #e3ded7; --accent: #b8410c;
  --bottom: #56708a; --top: #d9541e; --kept: #dbb9a4; --dropped: #a39b92; --good: #24704a;
  --load: #3f83b5; --forward: #cfa228; --backward: #7d5a9e; --optimizer: #3a9470; --other: #a9adb3; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #15171a; --card: #1d2024; --ink: #e9e6e1; --soft: #a6adb6; --line: #33373d; --accent: #ff9a5c;
  --bottom: #8ea9c2; --top: #ff8a4c; --kept: #7d5c4a; --dropped: #77726c; --good: #7fcfa6;
  --load: #62a9dc; --forward: #e2bd52; --backward: #a988cc; --optimizer: #5cc09a; --other: #767b83; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: clamp(1.7rem, 5vw, 2.6rem); line-height: 1.15; margin: 0 0 8px; letter-spacing: -0.02em; }
h1 strong { color: var(--accent); font-weight: inherit; }
h2 { font-size: 1.05rem; margin: 0 0 2px; }
p { margin: 0 0 12px; max-width: 72ch; } .soft, figcaption, .note { color: var(--soft); font-size: 0.9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 14px; margin: 26px 0; }
.card, figure, .panel { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.card { padding: 16px 18px; } .card b { display: block; font-size: 1.5rem; line-height: 1.2; font-weight: 650; }
.card span { color: var(--soft); font-size: 0.88rem; display: block; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 18px; }
figure { margin: 0; padding: 18px 18px 12px; min-width: 0; } figcaption { margin-bottom: 12px; }
.panel { padding: 18px; margin-top: 18px; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg text { fill: var(--ink); } svg .axis { fill: var(--soft); font-size: 11px; }
svg .label.dropped, svg .value.dropped { fill: var(--soft); } svg .label.top, svg .value.top { font-weight: 650; }
svg .grid { stroke: var(--line); } svg .whisker { stroke: var(--ink); stroke-width: 1.2; }
svg .target { stroke: var(--good); stroke-width: 1.4; stroke-dasharray: 5 4; }
.mark.bottom { fill: var(--bottom); } .mark.top { fill: var(--top); } .mark.kept { fill: var(--kept); }
.mark.faint { opacity: 0.5; } .hint { display: none; }
.mark.dropped { fill: none; stroke: var(--dropped); stroke-dasharray: 3 2; }
.line { fill: none; stroke-width: 1.2; stroke-linejoin: round; stroke: var(--kept); }
.line.kept, .line.dropped, .end.kept, .end.dropped { opacity: 0.25; }
.line.dropped { stroke: var(--dropped); stroke-width: 0.8; } .line.bottom { stroke: var(--bottom); }
.line.bottom, .line.top { stroke-width: 2; } .line.top { stroke: var(--top); }
.end { fill: var(--kept); } .end.dropped { fill: var(--dropped); } .end.bottom { fill: var(--bottom); }
.end.top { fill: var(--top); }
.part-0 { fill: var(--load); } .part-1 { fill: var(--forward); } .part-2 { fill: var(--backward); }
.part-3 { fill: var(--optimizer); } .part-4 { fill: var(--other); }
.key { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 6px 0 2px; font-size: 0.85rem; color: var(--soft); }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; }
.key .bottom { background: var(--bottom); } .key .top { background: var(--top); }
.key .kept { background: var(--kept); } .key .single { background: var(--kept); opacity: 0.5; }
.key .dropped { border: 1px dashed var(--dropped); } .key .target { height: 0; border-top: 2px dashed var(--good);
  border-radius: 0; vertical-align: 4px; }
.key .part-0 { background: var(--load); } .key .part-1 { background: var(--forward); }
.key .part-2 { background: var(--backward); } .key .part-3 { background: var(--optimizer); }
.key .part-4 { background: var(--other); }
.scroll { overflow-x: auto; } .scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 4px; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 12px 7px 0; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 550; } th:first-child, td:first-child, .words { text-align: left; }
thead th { white-space: normal; }
td small { display: block; color: var(--soft); } td.words { white-space: normal; min-width: 320px; padding-right: 0; }
td.verdict { padding-right: 0; }
tr.kept td:first-child { font-weight: 600; } td.verdict { color: var(--soft); }
tr.kept .verdict { color: var(--good); }
thead tr:not(:last-child) th { border-bottom: 0; padding-bottom: 0; }
details { margin-top: 14px; } summary { cursor: pointer; color: var(--accent); }
pre { overflow-x: auto; font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, monospace; margin: 10px 0 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; margin: 10px 0 0; font-size: 0.9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.panel:not(.wordy) td:first-child, .panel:not(.wordy) th:first-child { position: sticky; left: 0;
  background: var(--card); }
@media (max-width: 640px) { .hint { display: inline; }
  main { padding: 26px 14px 48px; } figure, .panel { padding: 14px; }
  svg { font-size: 13px; } svg .axis { font-size: 12px; }
  .wordy thead { display: none; } .wordy table, .wordy tbody, .wordy tr { display: block; }
  .wordy tr { padding: 9px 0; border-bottom: 1px solid var(--line); }
  .wordy td { display: inline; white-space: normal; border: 0; padding: 0 8px 0 0; }
  .wordy td:first-child, .wordy td.words { display: block; }
  .wordy td.words { min-width: 0; padding-top: 4px; }
  .wordy td:nth-child(3)::after { content: "\a"; white-space: pre; }
  .wordy td[data-label]::before { content: attr(data-label) " "; color: var(--soft); } }
)";

}  // namespace bellows::train
