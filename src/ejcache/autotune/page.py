"""Records as one self-contained HTML page: no scripts, nothing to be fetched."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING, Final

from ejcache.autotune.plain import canonical_json
from ejcache.autotune.records import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ejcache.autotune.records import Candidate, Record
    from ejcache.autotune.store import Found

__all__ = ["page"]

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --bar: #8ab; --chosen: #2a7; --bad: #c64; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2.5rem 0 0; font-size: 1.1rem; } code { font-size: 0.9em; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0; }
td { text-align: left; padding: 0.15rem 0.6rem 0.15rem 0; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.bar { width: 45%; } .bar div { background: var(--bar); height: 0.8rem; }
.chosen .bar div { background: var(--chosen); }
.failed { color: var(--bad); } .small { opacity: 0.75; font-size: 0.9em; margin: 0; }
"""


def page(found: Iterable[Found], *, title: str = "Tuned configurations") -> str:
    """The page.

    Args:
        found: the records, in the order in which they are to appear.
        title: of the page.
    """
    items = list(found)
    body = "\n".join(_section(item) for item in items) or "<p>There are no records.</p>"
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>\n'
        f"<h1>{escape(title)}</h1>\n"
        f'<p class="small">{len(items)} {"record" if len(items) == 1 else "records"}, {made}</p>\n'
        f"{body}\n</body></html>\n"
    )


def _section(item: Found) -> str:
    record = item.record
    slowest = max((c.seconds.p50 for c in record.candidates if c.seconds is not None), default=0.0)
    rows = "\n".join(_row(candidate, record, slowest) for candidate in record.candidates)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.created))
    host = escape(str(record.provenance.get("host", "")))
    gain = record.measurement.get("gain")
    saved = f", {100 * float(gain):.0f} % faster than the default" if isinstance(gain, int | float) and gain else ""
    return (
        f"<h2>{escape(record.key.operation)}@{escape(record.key.version)}</h2>\n"
        f'<p class="small"><code>{escape(record.key.text)}</code></p>\n'
        f"<p><code>{escape(canonical_json(record.configuration))}</code>: {escape(item.source.value)}{saved}</p>\n"
        + (f"<table>{rows}</table>\n" if rows else "")
        + f'<p class="small">{escape(item.layer)}, {when} {host}</p>'
    )


def _row(candidate: Candidate, record: Record, slowest: float) -> str:
    chosen = candidate.digest == canonical_json(record.configuration)
    name = f"<td><code>{escape(canonical_json(candidate.configuration))}</code></td>"
    if candidate.status is not Status.OK or candidate.seconds is None:
        return (
            f'<tr class="failed">{name}<td></td><td colspan="2">{escape(candidate.error or candidate.status)}</td></tr>'
        )
    width = 100 * candidate.seconds.p50 / slowest if slowest else 0
    spread = f"{candidate.seconds.p20 * 1e3:.4g} to {candidate.seconds.p80 * 1e3:.4g} ms"
    return (
        f'<tr{" class=chosen" if chosen else ""}>{name}<td class="number">{candidate.seconds.p50 * 1e3:.4g} ms</td>'
        f'<td class="number">{spread}</td><td class="bar"><div style="width:{width:.1f}%"></div></td></tr>'
    )
