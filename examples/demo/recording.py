"""Records the demo as a moving picture: `python -m examples.demo.recording docs/images/demo.svg`.

The picture is an SVG that scrolls by CSS, so that a browser shows it without a script. Pauses are shortened.
"""

import subprocess
import sys
import time
from html import escape
from pathlib import Path

ROWS, COLUMNS = 24, 104
LINE, CHARACTER = 18, 7.8
"""Height of a line and width of a character, in pixels."""
PAUSE_SECONDS = 2.5
"""A longer pause is cut to this length."""
RESULT_SECONDS = 6.0
"""How long the result is shown first, before the recording begins."""
PROMPT, GROUND = "$ make demo", "#0b1622"


def record() -> list[tuple[float, str]]:
    """Runs the demo; returns its lines, each with the seconds from the start to its appearance."""
    began = time.perf_counter()
    lines = [(0.0, PROMPT)]
    command = [sys.executable, "-u", "-m", "examples.demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        lines += [(time.perf_counter() - began, line.rstrip()) for line in process.stdout]
    if process.returncode:
        raise SystemExit(f"the demo ended with status {process.returncode}, and nothing was written")
    return lines


def shortened(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """The lines with no pause longer than PAUSE_SECONDS."""
    now, before, found = 0.0, 0.0, []
    for seconds, line in lines:
        now += min(seconds - before, PAUSE_SECONDS)
        before = seconds
        found.append((now, line))
    return found


def drawn(lines: list[tuple[float, str]]) -> str:
    """The picture. It begins with the result. The text moves up once the screen is full; a cover hides the lines
    that have not appeared yet."""
    total = RESULT_SECONDS + lines[-1][0]
    width, height = COLUMNS * CHARACTER + 24, ROWS * LINE + 44
    text = []
    moves = {"0%": min(ROWS - len(lines), 0) * LINE}
    covers = {"0%": min(len(lines), ROWS) * LINE + 6}
    for number, (seconds, line) in enumerate(lines, 1):
        at = f"{100 * (RESULT_SECONDS + seconds) / total:.2f}%"
        moves[at] = min(ROWS - number, 0) * LINE
        covers[at] = min(number, ROWS) * LINE + 6
        kind = "row" if line.startswith(" ") else "title"
        text.append(f'<text x="12" y="{LINE * number}" class="{kind}">{escape(line[:COLUMNS])}</text>')
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" \
aria-label="A recording of make demo">
<style>
text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d6deeb;white-space:pre}}
.title{{fill:#7fdbca;font-weight:bold}}
{_animation("text", moves, total)}
{_animation("cover", covers, total)}
@media print,(prefers-reduced-motion:reduce){{#text,#cover{{animation:none}}}}
</style>
<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>
<circle cx="18" cy="16" r="5" fill="#ff5f57"/><circle cx="36" cy="16" r="5" fill="#febc2e"/>\
<circle cx="54" cy="16" r="5" fill="#28c840"/>
<svg y="32" width="{width:.0f}" height="{ROWS * LINE + 6}">
<g id="text">{"".join(text)}</g><rect id="cover" width="100%" height="100%" fill="{GROUND}"/>
</svg>
</svg>
"""


def _animation(element: str, positions: dict[str, int], seconds: float) -> str:
    """The style that moves an element by steps; it ends at the last position, where it is without animations."""
    last = f"transform:translateY({list(positions.values())[-1]}px)"
    frames = "".join(f"{at}{{transform:translateY({move}px)}}" for at, move in positions.items())
    return (
        f"#{element}{{{last};animation:{element} {seconds:.1f}s step-end infinite}}"
        f"@keyframes {element}{{{frames}100%{{{last}}}}}"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(drawn(shortened(record())))
