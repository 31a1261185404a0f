"""Opens every page of the built site in headless Chromium at three widths, light and dark, and says what is wrong.

    make docs && python tools/site_check.py [--browser CHROMIUM]
    ejcache report --html page.html && python tools/site_check.py page.html

With pages of `ejcache report`, these are opened in place of the site, with everything unfolded and every start shown.
Checked: errors on the console, pages wider than the window, and text whose contrast to its ground is below WCAG AA; in
a report also text that is cut, or that lies beside the window.
"""

from __future__ import annotations

import argparse
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
REPORT_WIDTHS: Final = (400, 900, 1024, 1280)
SECONDS: Final = 300


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The site, the page that looks at it, the list of pages, and a place for what was found."""

    faults: list[str]
    looked: threading.Event
    reports: list[Path]

    def do_GET(self) -> None:
        if self.path == "/pages":
            reports = [f"report?{n}" for n in range(len(self.reports))]
            found = {"pages": reports or PAGES, "widths": REPORT_WIDTHS if reports else WIDTHS}
            self._answer(json.dumps(found).encode(), "application/json")
        elif self.path.startswith("/report?"):
            self._answer(self.reports[int(self.path.partition("?")[2])].read_bytes(), "text/html; charset=utf-8")
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", type=Path, help="pages of ejcache report")
    parser.add_argument("--browser", default="chromium", help="the command of Chromium")
    chosen = parser.parse_args()
    _Handler.looked, _Handler.reports = threading.Event(), chosen.reports
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [chosen.browser, "--headless=new", "--no-sandbox", "--disable-gpu"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home, tempfile.TemporaryFile("w+") as log:
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
    pages, widths = (chosen.reports, REPORT_WIDTHS) if chosen.reports else (PAGES, WIDTHS)
    print(f"{len(pages)} pages, {widths} px, light and dark: {len(_Handler.faults)} faults, {len(errors)} errors")
    sys.exit(1 if _Handler.faults or errors else 0)


if __name__ == "__main__":
    main()
