"""Opens every page of the built site in headless Chromium at three widths, light and dark, and says what is wrong.

    make docs && python tools/site_check.py [CHROMIUM]

Checked: errors on the console, pages wider than the window, and text whose contrast to its ground is below WCAG AA.
"""

from __future__ import annotations

import functools
import http.server
import json
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

SITE: Final = Path(__file__).resolve().parent.parent / "build" / "site"
WIDTHS: Final = (390, 820, 1440)
SECONDS: Final = 300


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The site, the page that looks at it, the list of pages, and a place for what was found."""

    faults: list[str]
    looked: threading.Event

    def do_GET(self) -> None:
        if self.path == "/pages":
            self._answer(json.dumps({"pages": PAGES, "widths": WIDTHS}).encode(), "application/json")
        elif self.path == "/check":
            self._answer(Path(__file__).with_suffix(".html").read_bytes(), "text/html")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        _Handler.faults = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(b"{}", "application/json")
        _Handler.looked.set()

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


PAGES: Final = sorted(path.name for path in SITE.glob("*.html") if path.name != "404.html")


def main() -> None:
    _Handler.looked = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [sys.argv[1] if len(sys.argv) > 1 else "chromium", "--headless=new", "--no-sandbox", "--disable-gpu"]
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile("w+") as log:
        command += [f"--user-data-dir={home}", "--enable-logging=stderr", "--remote-debugging-port=0"]
        browser = subprocess.Popen([*command, f"http://127.0.0.1:{server.server_port}/check"], stderr=log)
        done = _Handler.looked.wait(SECONDS)
        browser.terminate()
        browser.wait()
        log.seek(0)
        errors = re.findall(r"CONSOLE.*", log.read())
    server.shutdown()
    if not done:
        sys.exit(f"the pages were not looked at within {SECONDS} s: {errors}")
    print(*_Handler.faults, *errors, sep="\n")
    print(f"{len(PAGES)} pages, {WIDTHS} px, light and dark: {len(_Handler.faults)} faults, {len(errors)} errors")
    sys.exit(1 if _Handler.faults or errors else 0)


if __name__ == "__main__":
    main()
