"""Draws two-terminals.svg from a real run: two-terminals.py PROGRAM.

Two terminals run a job of 3 s under one lock, the second half a second later. What they print, and when, is
what the picture shows; the paths of the store and of the machine are not in it.
"""

import fcntl
import html
import os
import pathlib
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time

PROGRAM = sys.argv[1]
HERE = pathlib.Path(__file__).parent
COMMAND = ["run", "nightly-report", "--", "sh", "-c", "echo report: begins; sleep 3; echo report: done"]
SHOWN = "holdline run nightly-report -- ./report.sh"


def start(store):
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {"PATH": os.environ["PATH"], "HOLDLINE_STORE": store, "HOLDLINE_CONFIG": "", "TERM": "xterm"}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
        os.execve(PROGRAM, [PROGRAM, *COMMAND], environment)
    return terminal


def run():
    """Lines as (seconds, terminal, text)."""
    lines, rest = [], {}
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:{folder}/locks.db"
        begun = time.monotonic()
        terminals = {start(store): 0}
        while terminals:
            if len(terminals) == 1 and 0 in terminals.values() and time.monotonic() - begun > 0.5 and len(rest) < 2:
                second = start(store)
                terminals[second] = 1
                rest[1] = ""
            rest.setdefault(0, "")
            for terminal in select.select(list(terminals), [], [], 0.05)[0]:
                try:
                    data = os.read(terminal, 4096).decode()
                except OSError:
                    data = ""
                number = terminals[terminal]
                if not data:
                    lines.append((time.monotonic() - begun, number, "$"))
                    del terminals[terminal]
                    os.wait()
                    continue
                at = time.monotonic() - begun
                *whole, rest[number] = re.split(r"[\r\n]+", rest[number] + data)
                lines += [(at, number, line) for line in whole]
                if rest[number]:  # a line that is shown and later replaced
                    lines.append((at, number, rest[number]))
    return lines


def clean(text):
    """Without what differs from machine to machine."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    text = re.sub(r"sqlite:\S*/locks\.db", "sqlite:locks.db", text)
    text = re.sub(r"(process|pid) \d+", r"\1 4711", text)
    return re.sub(r"pid 4711 on [\w.-]+ ", "pid 4711 ", text)


def draw(lines):
    width, height, line_height = 860, 250, 19
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12.5">',
        "<title>Two terminals run the same command under one lock; the second waits for the first</title>",
    ]
    for number, (x, title) in enumerate([(0, "terminal 1"), (435, "terminal 2, half a second later")]):
        parts.append(f'<rect x="{x + 1}" y="1" width="423" height="{height - 2}" rx="8" fill="#1d1f21" stroke="#555"/>')
        parts.append(f'<text x="{x + 14}" y="22" fill="#8a8a8a">{title}</text>')
        rows = [(0.0 if number == 0 else 0.5, f"$ {SHOWN}")]
        for at, owner, text in lines:
            # The line about the wait is renewed each second: its first form stands for all.
            seen = [row[:24] for _, row in rows]
            if owner == number and clean(text).strip() and clean(text)[:24] not in seen:
                rows.append((at, clean(text)))
        y = 48
        for at, text in rows:
            for n, piece in enumerate(re.findall(r".{1,44}(?:\s|$)|.{44}", text) or [""]):
                colour = "#f0c674" if text.startswith("holdline") else "#c5c8c6"
                if n == 0:
                    parts.append(f'<text x="{x + 14}" y="{y}" fill="#6f7a80">{at:4.1f} s</text>')
                parts.append(f'<text x="{x + 66}" y="{y}" fill="{colour}" xml:space="preserve">{html.escape(piece.rstrip())}</text>')
                y += line_height
    return "\n".join([*parts, "</svg>", ""])


(HERE / "two-terminals.svg").write_text(draw(run()))
