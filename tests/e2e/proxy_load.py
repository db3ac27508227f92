"""Clients that send requests through a proxy, by hostname if it has several, and note every failure."""

from __future__ import annotations

import collections
import http.client
import json
import threading
import time


class ProxyLoad:
    """Half of the clients keep their connection. `failed` describes every response other than 200."""

    def __init__(self, port: int, host: str = "localhost", clients: int = 4) -> None:
        self._port, self._host, self.clients = port, host, clients
        self.answered: collections.Counter[str] = collections.Counter()
        self.failed: list[str] = []
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._request, args=(n % 2 == 0,)) for n in range(clients)]

    def __enter__(self) -> ProxyLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _request(self, keep_alive: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        while not self._stopped.is_set():
            try:
                connection.request("GET", "/", headers={"Host": self._host})
                answer = connection.getresponse()
                body = answer.read()
                if answer.status != 200:
                    self.failed.append(f"{time.strftime('%X')} {answer.status} {body[:100]!r}")
                else:
                    self.answered[json.loads(body)["replica"]] += 1
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(f"{time.strftime('%X')} {type(error).__name__} {error}")
                connection.close()
            if not keep_alive:
                connection.close()
            time.sleep(0.005)
        connection.close()
