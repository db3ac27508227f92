"""A shared part is validated once; a part with a finding is validated again each time."""

from __future__ import annotations

from holdfast.model.meta import ObjectMeta
from holdfast.model.template import Template
from holdfast.model.validation import Causes, ValidParts, required
from holdfast.model.workload import Workload, WorkloadSpec, validate_workload


def test_part_without_finding_is_validated_once_and_others_each_time() -> None:
    seen: list[str] = []

    def validate(part: Template) -> Causes:
        seen.append(part.user)
        if not part.command:
            yield required("command")

    valid, wrong = Template(command=("serve",), user="a"), Template(user="b")
    parts = ValidParts()
    for _ in range(3):
        assert list(parts.causes(valid, validate)) == []
        assert [cause.field for cause in parts.causes(wrong, validate)] == ["command"]
    assert seen == ["a", "b", "b", "b"]


def test_workload_with_invalid_template_is_refused_after_an_equal_workload_was_refused() -> None:
    template = Template(command=("serve",), resources={"cpu": "-1"})
    for name in ("a", "b"):
        causes = list(validate_workload(Workload(ObjectMeta(name=name), WorkloadSpec(template=template)), None))
        assert [cause.field for cause in causes] == ["spec.template.resources.cpu"]


def test_other_rules_are_checked_for_a_workload_with_a_known_template() -> None:
    template = Template(command=("serve",))
    assert list(validate_workload(Workload(ObjectMeta(name="a"), WorkloadSpec(template=template)), None)) == []
    causes = list(validate_workload(Workload(ObjectMeta(name="a"), WorkloadSpec(replicas=-1, template=template)), None))
    assert "spec.replicas" in [cause.field for cause in causes]
