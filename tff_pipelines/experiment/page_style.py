"""The style sheet of a page: light and dark, and readable on a phone."""

CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff;
  --box: #f4f6f8; --rule: #d0d7de; --ok: #116329; --no: #a40e26; --fill: 9, 105, 218;
  --c0: #0969da; --c1: #bc4c00; --c2: #1a7f37; --c3: #8250df; --c4: #bf3989;
  --c5: #7d6000; --c6: #0b7285; --c7: #57606a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9da7b3; --paper: #0d1117; --box: #161b22;
    --rule: #3d444d; --ok: #56d364; --no: #ff938a; --fill: 88, 166, 255;
    --c0: #58a6ff; --c1: #f0883e; --c2: #56d364; --c3: #bc8cff; --c4: #ff7ac6;
    --c5: #d9b94e; --c6: #39c5cf; --c7: #b1bac4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 0.6rem; padding-top: 0.6rem;
  border-top: 1px solid var(--rule); }
h3 { font-size: 1.05rem; margin: 1rem 0 0.3rem; }
p { margin: 0.4rem 0; max-width: 46rem; }
nav a { display: inline-block; padding: 0.3rem 0.7rem 0.3rem 0; color: var(--c0); }
.cards, .charts { display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
.charts { grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); }
.cards > * { min-width: 0; }
.card, figure { background: var(--box); border: 1px solid var(--rule);
  border-radius: 0.5rem; margin: 0; padding: 0.8rem 1rem; min-width: 0; }
.card h3 { margin-top: 0; }
.number { font-size: 1.7rem; font-weight: 600; line-height: 1.2; margin-top: 0.6rem; }
.number span { font-size: 1rem; font-weight: 400; white-space: nowrap; }
.soft { color: var(--soft); }
.tag { font-size: 0.8rem; font-weight: 400; border: 1px solid currentColor;
  border-radius: 1rem; padding: 0.05rem 0.6rem; white-space: nowrap;
  vertical-align: middle; }
.ok { color: var(--ok); }
.no { color: var(--no); }
.scroll { overflow-x: auto; margin: 0.6rem 0; }
.scroll:focus-visible { outline: 2px solid var(--c0); }
table { border-collapse: collapse; font-size: 0.92rem; overflow-wrap: normal;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.3rem; }
th, td { border-bottom: 1px solid var(--rule); padding: 0.25rem 0.7rem 0.25rem 0;
  text-align: left; vertical-align: top; max-width: 24rem; }
thead th { color: var(--soft); font-weight: 500; }
tbody th { font-weight: 500; }
.matrix th, .matrix td { text-align: right; padding: 0.1rem; min-width: 1.9rem; }
.matrix tbody th { padding-right: 0.6rem; }
.heat { display: block; padding: 0 0.3rem;
  background: rgba(var(--fill), calc(var(--share, 0) * 0.45)); }
summary { cursor: pointer; padding: 0.3rem 0; }
li { margin: 0.3rem 0; }
svg { display: block; width: 100%; height: auto; margin: 0.4rem 0; overflow: visible; }
svg text { fill: var(--soft); font: 11.5px system-ui, sans-serif; }
.grid { stroke: var(--rule); stroke-width: 0.7; }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
.dot { fill: currentColor; }
.legend { list-style: none; margin: 0; padding: 0; font-size: 0.88rem; }
.legend li { display: inline-block; margin: 0 1rem 0 0; }
.key { display: inline-block; width: 1.4rem; border-top: 3px solid currentColor;
  vertical-align: middle; margin-right: 0.4rem; }
.dashed { stroke-dasharray: 5 3; border-top-style: dashed; }
.s0 { color: var(--c0); } .s1 { color: var(--c1); } .s2 { color: var(--c2); }
.s3 { color: var(--c3); } .s4 { color: var(--c4); } .s5 { color: var(--c5); }
.s6 { color: var(--c6); } .s7 { color: var(--c7); }
@media print { .card, figure { break-inside: avoid; } }
"""
