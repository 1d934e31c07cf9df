#!/usr/bin/env python3
"""Draws the speed-up by kind of text as an SVG, from what `specgen bench --json` printed.

    python3 benches/chart.py greedy.json [sampled.json] > benches/speed-up.svg
"""
import html
import json
import sys

COLOURS = ["#3b7dd8", "#d9822b", "#2ca58d", "#b07be0"]
BAR, GAP, GROUP, LEFT, TOP, HEIGHT = 26, 3, 44, 44, 54, 190


def series(path):
    """The name of each draft of a result but plain decoding, with its speed-ups by category."""
    with open(path, encoding="utf-8") as file:
        result = json.loads(file.read())
    temperature = result["settings"]["temperature"]
    how = "greedy" if temperature == 0 else f"temperature {temperature:.2g}"
    found = {}
    for row in result["categories"]:
        if row["draft"] != "none":
            found.setdefault(f"{row['draft']}, {how}", {})[row["category"]] = row["speed_up"]
    return result["model"], found


def main(paths):
    model, bars = "", {}
    for path in paths:
        model, found = series(path)
        bars.update(found)
    categories = list(next(iter(bars.values())))
    top = max(max(ups.values()) for ups in bars.values())
    y = lambda up: TOP + HEIGHT * (1 - up / (1.1 * top))
    group = len(bars) * (BAR + GAP) + GROUP
    width = max(LEFT + len(categories) * group, LEFT + 260 * len(bars), 560) + 10
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 30}" '
        f'width="{width}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="#fff"/><text x="{LEFT}" y="18" font-size="14" fill="#222">'
        f"Tokens a second against plain decoding, {html.escape(model)}</text>",
    ]
    for i, name in enumerate(bars):
        x = LEFT + i * 260
        out.append(f'<rect x="{x}" y="28" width="12" height="12" fill="{COLOURS[i]}"/>')
        out.append(f'<text x="{x + 17}" y="38" fill="#444">{html.escape(name)}</text>')
    for up in range(int(1.1 * top) + 1):
        line = "#888" if up == 1 else "#e4e4e4"
        out.append(f'<line x1="{LEFT}" x2="{width - 10}" y1="{y(up):.1f}" y2="{y(up):.1f}" stroke="{line}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(up) + 4:.1f}" text-anchor="end" fill="#666">{up}x</text>')
    for i, category in enumerate(categories):
        left = LEFT + GROUP / 2 + i * group
        for j, ups in enumerate(bars.values()):
            up, x = ups.get(category, 0), left + j * (BAR + GAP)
            out.append(
                f'<rect x="{x:.1f}" y="{y(up):.1f}" width="{BAR}" height="{y(0) - y(up):.1f}" fill="{COLOURS[j]}"/>'
                f'<text x="{x + BAR / 2:.1f}" y="{y(up) - 4:.1f}" text-anchor="middle" font-size="10" fill="#444">'
                f"{up:.1f}</text>"
            )
        middle = left + (group - GROUP) / 2
        out.append(
            f'<text x="{middle:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle" fill="#222">'
            f"{html.escape(category)}</text>"
        )
    print("\n".join([*out, "</svg>"]))


if __name__ == "__main__":
    main(sys.argv[1:] or sys.exit(__doc__))
