#!/usr/bin/python3 -IS
"""tests/figures.py FOLDER - the pictures of man/figures.md and README.md, as SVG in FOLDER.

cost.svg and handoff.svg are drawn from bench.txt and handoff.tsv in FOLDER, which
tests/bench-report writes; overlap.svg from overlap.tsv, which `make proof` writes. No background is
drawn: text and lines are dark or light as the reader prefers. The colours are those of Okabe and
Ito that stand out from both.
"""
import re
import sys
from xml.sax.saxutils import escape

COLOURS = ["#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7"]
STYLE = """<style>
text { font: 13px sans-serif; fill: #222 } .title { font-size: 15px; font-weight: bold }
.small { font-size: 12px } .end { text-anchor: end } .middle { text-anchor: middle }
.grid { stroke: #d4d4d4 } .axis { stroke: #555 } .ink { fill: #111 } .pale { fill: #fff }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e4e4 } .grid { stroke: #4a4a4a } .axis { stroke: #aaa }
}
</style>"""


def text(x, y, words, kind="", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" {more}>{escape(str(words))}</text>'


def line(x1, y1, x2, y2, kind):
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" class="{kind}" fill="none"/>'


def rect(x, y, width, height, fill):
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{fill}"/>')


def write(path, width, height, title, parts):
    with open(path, "w") as f:
        f.write("\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">', f"<title>{escape(title)}</title>",
            STYLE, text(10, 22, title, "title"), *parts, "</svg>\n"]))


def cost_groups(path):
    """The rows of each measurement with a ratio, the row of ratio 1 first: (name, us, ratio)."""
    groups = []
    with open(path) as f:
        for row in f:
            m = re.match(r"  (\S.*?) +median +(\d+) .* (\d+\.\d\d) x (\w+)$", row)
            if not m:
                groups += [[]] if not groups or groups[-1] else []
            else:
                groups[-1].append((m[1], int(m[2]), float(m[3])))
    return [sorted(g, key=lambda r: r[2] != 1) for g in groups if g]


def cost(folder):
    groups = cost_groups(f"{folder}/bench.txt")
    left, wide, row, y = 350, 440, 22, 46
    most = int(max(r[2] for g in groups for r in g)) + 1
    bars, spans = [], []
    for g, rows in enumerate(groups):
        begin = y
        for name, us, ratio in rows:
            bars += [text(left - 8, y + 15, name, "end"),
                     rect(left, y + 3, wide * ratio / most, row - 7,
                          "#888888" if ratio == 1 else COLOURS[g % len(COLOURS)]),
                     text(left + wide * ratio / most + 6, y + 15, f"{ratio:.2f} x, {us} us",
                          "small")]
            y += row
        spans.append((begin, y))
        y += 14
    grid = []
    for k in range(most + 1):
        x = left + wide * k / most
        grid += [line(x, begin, x, end, "grid") for begin, end in spans]
        grid.append(text(x, y + 8, f"{k}", "middle small"))
    grid.append(text(left + wide / 2, y + 28, "multiple of the grey bar's time, each group beside "
                     "its own", "middle small"))
    write(f"{folder}/cost.svg", left + wide + 110, y + 40,
          "One run of 'true': the whole process, median", grid + bars)


def apart(wanted, least):
    """Places in the order of these, at least so far apart, and not far from them."""
    at = sorted(range(len(wanted)), key=lambda i: wanted[i])
    got = dict.fromkeys(at, 0.0)
    last = -1e9
    for i in at:
        last = got[i] = max(wanted[i], last + least)
    return [got[i] for i in range(len(wanted))]


def handoff(folder):
    import math
    with open(f"{folder}/handoff.tsv") as f:
        head, *rows = f.read().splitlines()
    stores = re.match(r"# waiters (.*) \(", head)[1].split()
    table = [[float(w) for w in r.split()] for r in rows]
    left, top, wide, high = 64, 44, 560, 300
    low, up = math.log(table[0][0]), math.log(table[-1][0])
    most = int(max(max(r[1:]) for r in table)) + 1

    def x(n):
        return left + wide * (math.log(n) - low) / (up - low)

    def y(ms):
        return top + high * (1 - ms / most)
    parts = []
    for ms in range(most + 1):
        parts += [line(left, y(ms), left + wide, y(ms), "grid"),
                  text(left - 8, y(ms) + 4, ms, "end small")]
    for r in table:
        parts += [line(x(r[0]), top + high, x(r[0]), top + high + 5, "axis"),
                  text(x(r[0]), top + high + 20, f"{r[0]:.0f}", "middle small")]
    parts += [line(left, top + high, left + wide, top + high, "axis"),
              text(left + wide / 2, top + high + 42, "waiters in line (logarithmic)",
                   "middle small"),
              text(18, top + high / 2, "ms from a grant to the next", "middle small",
                   f'transform="rotate(-90 18 {top + high / 2:.1f})"')]
    names = apart([y(table[-1][i + 1]) for i in range(len(stores))], 17)
    for i, store in enumerate(stores):
        points = " ".join(f"{x(r[0]):.1f},{y(r[i + 1]):.1f}" for r in table)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[i]}" '
                     'stroke-width="2.5"/>')
        parts += [f'<circle cx="{x(r[0]):.1f}" cy="{y(r[i + 1]):.1f}" r="3.5" '
                  f'fill="{COLOURS[i]}"/>' for r in table]
        parts += [f'<path d="M{left + wide + 5} {y(table[-1][i + 1]):.1f}L{left + wide + 18} '
                  f'{names[i]:.1f}" stroke="{COLOURS[i]}" fill="none"/>',
                  text(left + wide + 22, names[i] + 4, store)]
    write(f"{folder}/handoff.svg", left + wide + 110, top + high + 56,
          "From a grant to the next, by the number of waiters", parts)


def shade(word, most):
    """The fill of a cell of the heat map, and the class of its text."""
    if word in ("-", ""):
        return None, ""
    if not re.match(r"\d|ms$", word):
        return "#b8b8b8", "ink"
    if word == "0":
        return "#8fd3bd", "ink"
    part = 0 if word == "ms" else min(1, float(word) / most)
    pale, full = (0xF7, 0xDC, 0xA0), (0xC4, 0x4A, 0x00)
    mix = (round(a + (b - a) * part ** 0.5) for a, b in zip(pale, full))
    return "#%02x%02x%02x" % tuple(mix), "pale" if part > 0.5 else "ink"


def heat(path, title, tools, rows):
    """rows: (fault, words), a word for each tool: seconds, or as in dlock-proof(7)."""
    left, top, wide, high = 268, 108, 50, 21
    numbers = [float(w) for _, words in rows for w in words if re.match(r"\d", w)]
    most = max(numbers + [0.1])
    parts = []
    for i, tool in enumerate(tools):
        at = left + wide * (i + 0.5)
        parts.append(text(at - 4, top - 8, tool, "", f'transform="rotate(-45 {at - 4:.1f} '
                          f'{top - 8})"'))
    for k, (fault, words) in enumerate(rows):
        y = top + high * k
        parts.append(text(left - 8, y + 15, fault, "end"))
        for i, word in enumerate(words):
            fill, kind = shade(word, most)
            if fill:
                parts += [rect(left + wide * i + 1, y + 1, wide - 2, high - 2, fill),
                          text(left + wide * (i + 0.5), y + 15, word, f"middle small {kind}")]
    y, at = top + high * len(rows) + 12, 12
    for word, about in (("0", "never together"), ("ms", "below 0.05 s"),
                        (f"{most:.1f}", "the longest"), ("no", "B never ran")):
        fill, kind = shade(word, most)
        parts += [rect(at, y, 34, high - 2, fill),
                  text(at + 17, y + 14, word, f"middle small {kind}"),
                  text(at + 40, y + 14, about, "small")]
        at += 60 + 6.6 * len(about)
    write(path, max(left + wide * len(tools) + 60, round(at)), y + 34, title, parts)


def overlap(folder):
    with open(f"{folder}/overlap.tsv") as f:
        (_, *tools), *rows = [row.rstrip("\n").split("\t") for row in f]
    heat(f"{folder}/overlap.svg", "Seconds in which two commands ran under one lock", tools,
         [(fault, words) for fault, *words in rows])


if __name__ == "__main__":
    cost(sys.argv[1])
    handoff(sys.argv[1])
    overlap(sys.argv[1])
