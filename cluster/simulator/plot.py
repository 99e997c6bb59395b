"""Time series of replays as one picture (SVG): nodes by capacity type, and jobs that wait, on the same axes for all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from cluster.simulator.time_series import STEPS, TimeSeries

WIDTH, PANEL, LEFT, TOP, GAP = 860, 150, 60, 30, 46
SPOT, ON_DEMAND, WAITING = "#2a9d8f", "#e9a03b", "#c0392b"
_STYLE = "font-family='sans-serif' font-size='12' fill='#333'"


def plot(series_by_name: Mapping[str, TimeSeries]) -> str:
    """An SVG document; each series has a panel of its nodes above one of its waiting jobs."""
    nodes = max(
        max(map(sum, zip(one.spot_nodes, one.on_demand_nodes, strict=True)))
        for one in series_by_name.values()
    )
    waiting = max(max(one.waiting_jobs) for one in series_by_name.values())
    parts: list[str] = []
    top = TOP
    for name, series in series_by_name.items():
        both = [spot + other for spot, other in zip(series.spot_nodes, series.on_demand_nodes, strict=True)]
        layers = [_area(both, nodes, top, ON_DEMAND), _area(series.spot_nodes, nodes, top, SPOT)]
        parts += _panel(f"{name}: nodes", layers, nodes, top)
        top += PANEL + GAP
        parts += _panel(
            f"{name}: jobs that wait", [_area(series.waiting_jobs, waiting, top, WAITING)], waiting, top
        )
        top += PANEL + GAP
    parts += _times(next(iter(series_by_name.values())), top - GAP)
    return _document(parts, top)


def _document(parts: Sequence[str], height: int) -> str:
    legend = " ".join(
        f"<tspan fill='{color}'>&#9632;</tspan> {word}"
        for word, color in (("spot", SPOT), ("on-demand", ON_DEMAND), ("waiting", WAITING))
    )
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}'>",
            f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
            f"<text x='{WIDTH - 20}' y='18' text-anchor='end' {_STYLE}>{legend}</text>",
            *parts,
            "</svg>",
            "",
        ]
    )


def _panel(title: str, layers: Sequence[str], most: float, top: int) -> list[str]:
    bottom, right = top + PANEL, WIDTH - 20
    return [
        f"<text x='{LEFT}' y='{top - 6}' {_STYLE}>{escape(title)}</text>",
        *layers,
        f"<path d='M{LEFT} {top}V{bottom}H{right}' fill='none' stroke='#888'/>",
        f"<text x='{LEFT - 6}' y='{top + 10}' text-anchor='end' {_STYLE}>{most:.4g}</text>",
        f"<text x='{LEFT - 6}' y='{bottom}' text-anchor='end' {_STYLE}>0</text>",
    ]


def _area(values: Sequence[float], most: float, top: int, color: str) -> str:
    bottom = top + PANEL
    width = (WIDTH - 20 - LEFT) / STEPS
    steps = []
    for at, value in enumerate(values):
        height = PANEL * value / most if most > 0 else 0.0
        steps.append(f"V{bottom - height:.1f}H{LEFT + (at + 1) * width:.1f}")
    return f"<path d='M{LEFT} {bottom}{''.join(steps)}V{bottom}Z' fill='{color}'/>"


def _times(series: TimeSeries, bottom: int) -> list[str]:
    span_s = series.step_s * STEPS
    unit_s, unit = (86_400.0, "days") if span_s > 4 * 86_400 else (3600.0, "hours")
    step = 10 ** math.floor(math.log10(span_s / unit_s))
    while span_s / unit_s / step < 4:
        step /= 2
    marks = [at * step for at in range(1 + int(span_s / unit_s / step))]
    wide = WIDTH - 20 - LEFT
    return [
        f"<text x='{LEFT + wide * mark * unit_s / span_s:.1f}' y='{bottom + 16}' text-anchor='middle' {_STYLE}>"
        f"{mark:g}{f' {unit}' if mark == marks[-1] else ''}</text>"
        for mark in marks
    ]
