"""The first process of a machine of `tests.machines`: reaps the processes whose parents have ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        signal.sigwait([signal.SIGCHLD])
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


main()
