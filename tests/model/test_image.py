"""Image references, and which templates with an image are accepted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.artifact import Artifact
from holdfast.model.image import BadReference, PullPolicy, default_pull_policy, parse_reference, with_digest
from holdfast.model.meta import ObjectMeta
from holdfast.model.template import (
    DriverName,
    Template,
    canonical_template,
    is_unresolved,
    required_driver,
    template_hash,
    validate_template,
)
from holdfast.model.workload import Revision, RolloutBlock, Workload, WorkloadSpec, WorkloadStatus, resolved_template
from holdfast.model.workload_blocks import ImageBlock

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("team/web", "docker.io/team/web:latest"),
        ("registry.example.com/web", "registry.example.com/web:latest"),
        ("registry.example.com:5000/a/b/c:1.4", "registry.example.com:5000/a/b/c:1.4"),
        ("localhost/web:1", "localhost/web:1"),
        (f"web@{DIGEST}", f"docker.io/library/web@{DIGEST}"),
        (f"r.example/web:1@{DIGEST}", f"r.example/web:1@{DIGEST}"),
    ],
)
def test_reference_is_normalised(text: str, normalised: str) -> None:
    assert str(parse_reference(text)) == normalised
    assert str(parse_reference(normalised)) == normalised


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/web",
        "Web",
        "web:",
        "web:-x",
        "web:" + "x" * 129,
        "web@sha256:short",
        "web@md5:abc",
        "http://r.example/web",
        "r.example:99999/web",
        "r.example/../web",
        "r.example//web",
        "user@r.example/web",
        "r.example/web tag",
        "r.example/web\n",
        "r.example/" + "a" * 600,
        "127.0.0.1:5000@evil.example/web",
    ],
)
def test_text_that_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        parse_reference(text)


def test_default_pull_policy_is_that_of_kubernetes() -> None:
    assert default_pull_policy(parse_reference("web")) is PullPolicy.ALWAYS
    assert default_pull_policy(parse_reference("web:latest")) is PullPolicy.ALWAYS
    assert default_pull_policy(parse_reference("web:1")) is PullPolicy.IF_NOT_PRESENT
    assert default_pull_policy(parse_reference(f"web:latest@{DIGEST}")) is PullPolicy.IF_NOT_PRESENT


def causes(**fields: Any) -> list[str]:
    return [cause.field for cause in validate_template("t", canonical_template(Template(**fields)))]


def test_template_with_image_is_run_by_oci_and_needs_no_command() -> None:
    template = canonical_template(Template(image="web:1"))
    assert template.driver is DriverName.OCI and required_driver(template) == "oci-image"
    assert causes(image="web:1") == []
    assert required_driver(Template(driver=DriverName.OCI, bundle="/b")) == "oci"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"image": "Web"}, "t.image"),
        ({"image": "web", "bundle": "/b"}, "t.bundle"),
        ({"image": "web", "driver": DriverName.HOLLOW}, "t.image"),
        ({"driver": DriverName.OCI}, "t.image"),
        ({"image": "web", "artifacts": (Artifact("a", "/f"),)}, "t.artifacts"),
        ({"command": ("x",), "image_pull_policy": PullPolicy.NEVER}, "t.imagePullPolicy"),
        ({"image": "web", "image_digest": DIGEST}, "t.imageDigest"),
    ],
)
def test_template_with_contradictory_image_is_refused(fields: dict[str, Any], field: str) -> None:
    assert field in causes(**fields)


def test_digest_is_not_part_of_the_revision() -> None:
    template = Template(image="web:1", driver=DriverName.OCI)
    resolved = msgspec.structs.replace(template, image_digest=DIGEST)
    assert template_hash(template) == template_hash(resolved)
    assert is_unresolved(template) and not is_unresolved(resolved)
    assert not is_unresolved(Template(image=f"web@{DIGEST}")) and not is_unresolved(Template(command=("x",)))
    assert with_digest("web:1", DIGEST) == f"docker.io/library/web:1@{DIGEST}"


def test_workload_has_the_digest_of_its_own_revision_only() -> None:
    template = Template(image="web:1", driver=DriverName.OCI)
    revision = template_hash(template)

    def digest(**status: Any) -> str | None:
        workload = Workload(ObjectMeta(name="w"), WorkloadSpec(template=template), WorkloadStatus(**status))
        found = resolved_template(workload)
        return found.image_digest if found is not None else None

    assert digest() is None
    assert digest(image=ImageBlock(revision, "web:1", reason="ImageNotFound")) is None
    assert digest(image=ImageBlock("another", "web:1", DIGEST)) is None
    assert digest(image=ImageBlock(revision, "web:1", DIGEST)) == DIGEST
    earlier = Revision(revision, msgspec.structs.replace(template, image_digest="sha256:" + "cd" * 32))
    again = digest(image=ImageBlock(revision, "web:1", DIGEST), rollout=RolloutBlock(history=(earlier,)))
    assert again == earlier.template.image_digest, "a revision that ran before keeps its digest"
