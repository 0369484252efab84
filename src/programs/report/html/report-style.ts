// How a report looks: light and dark, from 400 px up, on paper.

/** The series colours keep a contrast of 3 to 1 to both backgrounds, and differ for those who see few colours. */
export const reportStyle = `
:root {
  --ground: #fff; --text: #1a1d21; --soft: #5b6570; --line: #d5dae0; --panel: #f6f7f9; --focus: #1a56db;
  --c1: #1f6fb4; --c2: #c4531b; --c3: #16806a; --c4: #9a4f96; --c5: #8a6a00; --c6: #b03060; --c7: #5a6b7b; --c8: #3f7d20;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171b; --text: #e8eaed; --soft: #a3acb7; --line: #363d46; --panel: #1d2126; --focus: #8ab4f8;
    --c1: #6cb0ee; --c2: #f2945c; --c3: #4fc4a8; --c4: #cf92cb; --c5: #d8b23c; --c6: #f07ca4; --c7: #a3b3c4; --c8: #8ccb69;
  }
}
* { box-sizing: border-box; }
html { color-scheme: light dark; scroll-behavior: smooth; }
body {
  margin: 0 auto; padding: 0 clamp(12px, 3vw, 40px) 40px; max-width: 1700px;
  background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif;
}
header { padding: 24px 0 4px; }
h1 { font-size: clamp(20px, 4vw, 28px); line-height: 1.25; margin: 0 0 8px; overflow-wrap: anywhere; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; margin: 16px 0; padding: 0; }
a { color: var(--focus); }
.skip { position: absolute; left: -9999px; }
.skip:focus { left: 12px; top: 8px; background: var(--ground); padding: 4px 8px; z-index: 2; }
section { border-top: 1px solid var(--line); padding: 12px 0 20px; }
h2 { font-size: 19px; margin: 8px 0 4px; }
.note { color: var(--soft); margin: 0 0 12px; max-width: 90ch; }
.pair { display: grid; grid-template-columns: minmax(0, 1fr); gap: 16px; align-items: start; }
@media (min-width: 1100px) {
  .pair:has(.figure) { grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); }
  .pair:has(.chart.wide) { grid-template-columns: minmax(0, 1fr); }
}
.figure { min-width: 0; }
.chart { border-radius: 6px; min-height: 60px; }
.chart figure { margin: 0; }
.chart h3, .chart p { font-size: 13px; margin: 0 0 2px; }
.chart svg { --plot-background: var(--ground); display: block; max-width: 100%; height: auto; font: 12px system-ui, sans-serif; }
.chart [class*="swatches"] { margin-bottom: 4px; font: 12px system-ui, sans-serif; }
.chart .current { stroke: var(--text); stroke-width: 2.5px; stroke-opacity: 1; }
.value { min-height: 1.5em; margin: 2px 0 0; color: var(--soft); font-variant-numeric: tabular-nums; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
.table { overflow: auto; max-width: 100%; border: 1px solid var(--line); border-radius: 6px; }
.table.long { max-height: 430px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 4px 10px; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; font-weight: 400; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { background: var(--panel); color: var(--soft); position: sticky; top: 0; font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
footer { border-top: 1px solid var(--line); color: var(--soft); font-size: 14px; }
@media print { .skip, nav, .value { display: none; } .table.long { max-height: none; } section { break-inside: avoid; } }
`;
