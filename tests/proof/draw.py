#!/usr/bin/python3 -IS
"""draw.py RESULTS FOLDER - a timeline for each fault of results.json, as FOLDER/FAULT.svg.

A tool has two lines, A above B; the head of each drawing has the key.
"""
import json
import sys
from xml.sax.saxutils import escape

LEFT, WIDTH, ROW, TOP = 150, 760, 46, 64
WAITS, HOLDS, BOTH, FAULT = "#d9dce1", "#8c929c", "#d0342c", "#8a5a00"
COLOUR = {"A": "#3a6ea5", "B": "#4c9a57"}


def bar(x, y, width, height, fill, title=""):
    hint = f"<title>{escape(title)}</title>" if title else ""
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.7):.1f}" height="{height}" '
            f'fill="{fill}">{hint}</rect>')


def text(x, y, words, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


class Drawing:
    def __init__(self, title, cells):
        self.cells = cells
        self.begin = min(min(p["begin"] for p in c["processes"]) for c in cells.values())
        self.end = max(c["over"] for c in cells.values())
        self.height = TOP + ROW * len(cells) + 30
        self.out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" '
            f'height="{self.height}" font-family="sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="white"/>',
            text(10, 18, title, 'font-size="14" font-weight="bold"')]
        self.key()
        self.axis()
        for i, (tool, cell) in enumerate(cells.items()):
            self.row(tool, cell, TOP + i * ROW)
        self.out.append("</svg>\n")

    def x(self, second):
        return LEFT + WIDTH * (second - self.begin) / (self.end - self.begin)

    def bar(self, begin, end, *rest):
        self.out.append(bar(self.x(begin), rest[0], self.x(end) - self.x(begin), *rest[1:]))

    def key(self):
        at = 10
        for fill, words in ((WAITS, "the tool waits"),
                            (HOLDS, "it has the lock, as far as it knows"),
                            (COLOUR["A"], "A's command"),
                            (COLOUR["B"], "B's command"), (BOTH, "both run"),
                            (FAULT, "the fault; dashed: its end")):
            self.out += [bar(at, 28, 12, 10, fill), text(at + 16, 37, words)]
            at += 36 + 6.2 * len(words)

    def axis(self):
        for second in range(0, int(self.end) + 1, 2):
            x = self.x(second)
            self.out.append(f'<path d="M{x:.1f} {TOP - 4}V{self.height - 22}" stroke="#e4e4e4"/>')
            self.out.append(text(x, self.height - 8, f"{second} s", 'text-anchor="middle"'))

    def row(self, tool, cell, y):
        self.out.append(text(10, y + 15, tool, 'font-weight="bold"'))
        told = f"{cell['overlap']:.1f} s together" if cell["overlap"] else "never together"
        if not cell["b_ran"]:
            told = "B never runs"
        self.out.append(text(10, y + 29, told))
        for p in cell["processes"]:
            end = cell["over"] if p["end"] is None else p["end"]
            top = y + (0 if p["who"] == "A" else 18)
            hint = f"{p['who']} {p['role']} {p['begin']:.2f} to {end:.2f} s"
            if p["role"] != "wrapper":
                self.bar(p["begin"], end, top + 5, 8, COLOUR[p["who"]], hint)
                continue
            granted = min([c["begin"] for c in cell["processes"] if c["role"] != "wrapper"
                           and c["who"] == p["who"] and p["begin"] <= c["begin"] <= end] or [end])
            self.bar(p["begin"], granted, top, 4, WAITS, hint)
            if granted < end:
                self.bar(granted, end, top, 4, HOLDS, hint)
        self.both(cell, y)
        for at, what in cell["events"]:
            if "fault" in what:
                dash = 'stroke-dasharray="3,2"' if what != "fault" else ""
                self.out.append(f'<path d="M{self.x(at):.1f} {y - 2}v38" stroke="{FAULT}" {dash}>'
                                f"<title>{escape(what)} {at:.2f} s</title></path>")

    def both(self, cell, y):
        lives = {who: [(p["begin"], cell["over"] if p["end"] is None else p["end"])
                       for p in cell["processes"] if p["who"] == who and p["role"] != "wrapper"]
                 for who in "AB"}
        for a in lives["A"]:
            for b in lives["B"]:
                begin, end = max(a[0], b[0]), min(a[1], b[1])
                if begin < end:
                    self.bar(begin, end, y + 13, 10, BOTH)


def draw(results, folder):
    for fault, title in results["faults"].items():
        cells = {c["tool"]: c for c in results["cells"]
                 if c["fault"] == fault and c["outcome"] == "ok"}
        if cells:
            with open(f"{folder}/{fault}.svg", "w") as f:
                f.write("\n".join(Drawing(title, cells).out))


if __name__ == "__main__":
    with open(sys.argv[1]) as f:
        draw(json.load(f), sys.argv[2])
