"""What a command says about an exception that it did not expect: an `error:` and a `next:` line, never a traceback.

Files of other programs, full disks and missing permissions end here. A fault of Holdfast itself ends here too; its
traceback is printed if HOLDFAST_TRACEBACK is set.
"""

from __future__ import annotations

import errno
import os

from holdfast.foundation.exit_codes import CommandError, ExitCode

TRACEBACK_VARIABLE = "HOLDFAST_TRACEBACK"
# Length of an exception's own text in a message. The rest is cut off.
CAUSE_CHARS_MAX = 300

_STEPS = {
    errno.ENOSPC: "free space on that disk, then run the command again",
    errno.EDQUOT: "free space within your quota, then run the command again",
    errno.EROFS: "choose a directory that can be written, with --state",
    errno.EACCES: "check the owner and mode of the file, or choose another --state",
    errno.EPERM: "check the owner and mode of the file, or choose another --state",
    errno.ENOTDIR: "choose another --state: a part of this path is a file",
    errno.EISDIR: "this path must be a file, and is a directory: move it away",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ELOOP: "remove the circular symbolic link",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
    errno.EADDRINUSE: "choose another --port-base",
}


def described(error: Exception) -> CommandError:
    """The error as a user reads it."""
    if isinstance(error, OSError):
        return _of_operating_system(error)
    cause = f"{type(error).__name__}: {error}"[:CAUSE_CHARS_MAX]
    if isinstance(error, UnicodeError):
        return CommandError(
            f"a file or argument is not UTF-8 text ({error})"[:CAUSE_CHARS_MAX], next_step="check the files of --state"
        )
    return CommandError(
        f"unexpected failure ({cause})", next_step=f"run it again with {TRACEBACK_VARIABLE}=1 and report the output"
    )


def _of_operating_system(error: OSError) -> CommandError:
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    why = error.strerror or str(error) or type(error).__name__
    step = _STEPS.get(error.errno or 0, "check the path, its owner and its mode")
    return CommandError(f"{where}: {why.lower()}" if where else why.lower(), next_step=step, code=ExitCode.FAILED)
