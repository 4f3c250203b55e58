//! The look of the page, in light and dark.

/// The style sheet.
pub(super) const CSS: &str = "
:root{--ink:#1d2430;--dim:#667085;--line:#d9dee7;--ground:#fff;--good:#127a4b;--bad:#c0271f;--alive:#dbe4f0;--member:#9dbbe3;\
--works:#2f6fbd;--paused:#f2c14e;--cut:#c0271f}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf2;--dim:#97a1b3;--line:#333b49;--ground:#12161d;--good:#48c78e;--bad:#ff7b72;\
--alive:#27303f;--member:#36547f;--works:#5b9bea;--paused:#d9a832;--cut:#ff7b72}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--ground);max-width:1180px;margin:2em auto;padding:0 1.2em}
h1{font-size:1.5em;margin:0 0 .3em}h2{font-size:1.1em;margin:1.8em 0 .4em}p{margin:.3em 0}code{font-size:.88em;color:var(--dim);word-break:break-word}
.verdict{font-size:.62em;padding:.15em .6em;border-radius:1em;vertical-align:middle;border:1px solid}.good{color:var(--good)}.bad{color:var(--bad)}.dim{color:var(--dim)}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.22em .8em .22em 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--dim);font-size:.88em}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}td.name{white-space:nowrap;width:14em}td.v{width:1.2em}
svg{display:block;width:100%;height:auto;overflow:visible}svg text{fill:var(--dim);font:11px system-ui,sans-serif}
.grid{stroke:var(--line);stroke-width:1}.alive{fill:var(--alive)}.member{fill:var(--member)}.works{fill:var(--works)}.paused{fill:var(--paused)}
.cutoff{stroke:var(--cut);stroke-width:2}.mark{fill:var(--bad)}.start{fill:var(--good)}.leave{fill:var(--dim)}.span{fill:var(--bad);opacity:.09}.quiet{fill:var(--good);opacity:.07}
.a{stroke:var(--dim)}.m{stroke:var(--member)}.c{stroke:var(--works)}.curve{fill:none;stroke-width:1.4}.dot{fill:var(--works)}
.legend span{margin-right:1.3em;font-size:.86em;color:var(--dim);white-space:nowrap}.legend i{display:inline-block;width:1.1em;height:.7em;margin-right:.4em}
";
