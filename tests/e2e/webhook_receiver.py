"""A webhook receiver as a process of its own. Writes each request to a file, and behaves as its mode file says."""

from __future__ import annotations

import http.server
import json
import sys
import time
from pathlib import Path
from typing import Any


def make_handler(folder: Path) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            record = {"path": self.path, "headers": dict(self.headers), "body": body.decode(), "at": time.time()}
            with (folder / "requests.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
            getattr(self, f"_answer_{(folder / 'mode').read_text().strip()}")()

        do_GET = do_POST

        def _answer_ok(self) -> None:
            self.send_response(204)
            self.end_headers()

        def _answer_refuse(self) -> None:
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _answer_redirect(self) -> None:
            self.send_response(307)
            self.send_header("Location", f"http://{self.headers['Host']}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _answer_huge(self) -> None:
            """Accepts, and then never stops sending."""
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 65536)
            except OSError:
                self.close_connection = True

        def _answer_slow(self) -> None:
            """Sends a header line of one byte each second, for ever."""
            try:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while True:
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(1)
            except OSError:
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler


if __name__ == "__main__":
    place = Path(sys.argv[1])
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), make_handler(place)).serve_forever()
