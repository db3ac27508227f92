"""Random templates as a tenant may send them: ordinary fields, some with hostile texts."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONG = os.environ.get("HOLDFAST_FUZZ") == "long"
# The short run draws nearly the same templates each time. Hypothesis also draws constants of the modules that are
# imported by then, so no test may expect an exact count.
FUZZ = settings(
    max_examples=3000 if LONG else 500,
    derandomize=not LONG,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

# fmt: off
HOSTILE = [
    "", ".", "..", "/", "//", "../..", "../x", "/etc", "/etc/passwd", "a/../../b", "a/b", "~", "-rf", "--", "*",
    "a\0b", "\0", "x\0uid=0", "x\0group=/\0\0001\0id", "a\nb", "a\r\nHost: b", "\x1b[2J", "\x7f", "\u0085", "\u202e",
    "\ufeff", "\uffff", "💥", "é", "a" * 300, "a" * 5000, "a" * 140_000, "%2e%2e%2f", "%00", "${HOME}", "$(id)", "`id`",
    "; id", "'", '"', "root", "0", "-1", "+0", "nobody", "user=root", "LD_PRELOAD", "HOLDFAST_TASK", "PATH", "=", "a=b",
    "file:///etc/shadow", "file://localhost/x", "file://host/x", "file:x", "file:%2e%2e/x", "http://", "http://[",
    "http://a@b/", "http://127.0.0.1:99999/", "http://a b/", "http://\u2100/", "ftp://a/b", "HTTP://A/B", "data:1",
    "https://example.com/a.tar.gz", "//host/share", "C:\\x", "sha256:", "sha256:" + "0" * 64, "sha256:../../x",
    "sha256:" + "A" * 64, "SIGKILL", "SIGUSR1", "inf", "1e400",
]
# fmt: on

_hostile = st.sampled_from(HOSTILE) | st.text(max_size=20)
_words = st.sampled_from(["a", "b", "app", "data.bin", "x_1"])
_text = _words | _hostile
_pairs = st.dictionaries(_text, _text, max_size=3)
_numbers = st.sampled_from([0, 1, 2, 80, 65535, 65536, -1, 10**12, 0.5, 1e308]) | st.integers() | st.floats()
_probe = st.fixed_dictionaries(
    {},
    optional={
        "http": st.fixed_dictionaries({}, optional={"path": _text | st.just("/ok"), "port": _text, "scheme": _text}),
        "tcp": st.fixed_dictionaries({}, optional={"port": _text}),
        "exec": st.fixed_dictionaries({}, optional={"command": st.lists(_text, max_size=3)}),
        "periodSeconds": _numbers,
        "failureThreshold": _numbers,
    },
)
_artifact = st.fixed_dictionaries(
    {"name": _words | _words | _text, "source": st.just("/shared/f") | st.just("https://example.com/f") | _text},
    optional={"digest": st.just("") | st.just("sha256:" + "0" * 64) | _text},
)
_program = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"]) | _text},
    optional={
        "command": st.just(["true"]) | st.lists(_text, max_size=3),
        "args": st.lists(_text, max_size=2),
        "env": _pairs,
        "workingDir": st.sampled_from(["sub", "..", "x\0uid=0"]) | _text,
        "timeoutSeconds": _numbers,
        "readiness": _probe,
    },
)
_paths = (
    st.sampled_from(["/data", "/srv/x", "/usr/lib", "/proc/self", "/a/../b", "/", "//x", "/tmp/x", "/etc", "data"])
    | _text
)
_volume = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"]) | _text, "mountPath": _paths},
    optional={
        "readOnly": st.booleans(),
        "scratch": st.fixed_dictionaries(
            {}, optional={"sizeLimit": st.just("1Mi") | _text | _numbers, "medium": st.just("Memory") | _text}
        ),
        "hostPath": st.fixed_dictionaries({}, optional={"path": _paths}),
    },
)
_hook = st.fixed_dictionaries(
    {}, optional={"exec": st.fixed_dictionaries({"command": st.lists(_text, max_size=3)}), "timeoutSeconds": _numbers}
)
_port = st.fixed_dictionaries({"name": _text}, optional={"port": _numbers})

_fields: dict[str, st.SearchStrategy[Any]] = {
    "driver": st.sampled_from(["process", "oci", "hollow"]) | _hostile,
    "args": st.lists(_text, max_size=3),
    "env": _pairs,
    "workingDir": st.sampled_from(["sub/dir", "/srv", "..", "a/../../b", "x\0uid=0", "x\0root=1", "\0"]) | _text,
    "user": _text,
    "bundle": _text,
    "image": _text | st.sampled_from(["web:1", "r.example/web@sha256:" + "0" * 64]),
    "imagePullPolicy": st.sampled_from(["Always", "IfNotPresent", "Never"]) | _hostile,
    "artifacts": st.lists(_artifact, max_size=3),
    "resources": st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]) | _hostile, _text | _numbers, max_size=2),
    "gpuModels": st.lists(_text, max_size=2),
    "ports": st.lists(_port, max_size=3),
    "probes": st.fixed_dictionaries({}, optional={"startup": _probe, "readiness": _probe, "liveness": _probe}),
    "restartPolicy": st.sampled_from(["Always", "OnFailure", "Never"]) | _hostile,
    "terminationGraceSeconds": _numbers,
    "drainDelaySeconds": _numbers,
    "checkpointSignal": _text,
    "labels": _pairs,
    "initTasks": st.lists(_program, max_size=2),
    "sidecars": st.lists(_program, max_size=2),
    "lifecycle": st.fixed_dictionaries({}, optional={"preStop": _hook, "postStart": _hook}),
    "volumes": st.lists(_volume, max_size=2),
}


plain_artifacts = st.fixed_dictionaries(
    {
        "command": st.just(["serve"]),
        "artifacts": st.lists(
            st.fixed_dictionaries({"name": _words, "source": st.just("/shared/f")}),
            min_size=1,
            max_size=3,
            unique_by=lambda artifact: artifact["name"],
        ),
    }
)
"""Templates whose artifacts are accepted."""


@st.composite
def templates(draw: st.DrawFn) -> dict[str, Any]:
    """A template with one to three of its fields drawn. More would almost always be refused for one of them."""
    made: dict[str, Any] = {"command": draw(st.just(["serve"]) | st.lists(_text, max_size=3))}
    names = st.sampled_from([*sorted(_fields), "artifacts", "artifacts", "artifacts", "workingDir", "workingDir"])
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        made[name] = draw(_fields[name])
    return made
