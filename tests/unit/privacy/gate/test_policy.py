"""A policy allows what it names and denies the rest, and a mistake in it is named."""

import json
import math
from pathlib import Path

import pytest

from grandrounds.deployment.jobs import class_of, job_names, load_job
from grandrounds.errors import ConfigurationError
from grandrounds.methods.mutual.executor import SOFT_LABELS, VALUES
from grandrounds.privacy.gate.kinds import KINDS
from grandrounds.privacy.gate.policy import SitePolicy, parse_policy, read_policies
from grandrounds.privacy.gate.treatments import (
    ClipAndNoise,
    ClipAndNoiseSamples,
    CurveSupport,
    MinimumSupport,
    Quantise,
    RecordLevel,
    Unmodified,
)
from grandrounds.protocol.messages import SITE_MODEL, ReleaseKind
from grandrounds.protocol.spending import Unit

OVERLAYS = Path(__file__).parents[4] / "provisioning" / "overlays"
GATE = "grandrounds.privacy.gate.filters.SitePrivacyGate"
UPDATE = ReleaseKind.MODEL_UPDATE


def update_rule(**changes):
    """The model's update, clipped and with noise."""
    rule = {
        "kind": "model_update",
        "name": "update",
        "treatment": "clip_and_noise",
        "clip": 1.0,
        "noise_multiplier": 16,
    }
    return rule | changes


def policy(*releases, **changes):
    """A policy as in the file."""
    return {"unit": "site", "delta": 1e-5, "releases": list(releases or [update_rule()])} | changes


def privacy_file(content, **changes):
    """A whole ``privacy.json`` with one scope."""
    filters = [{"path": GATE}]
    scope = {"name": "strict", "properties": {"grandrounds": content}, "task_data_filters": filters}
    return {"scopes": [scope | {"task_result_filters": filters} | changes], "default_scope": "strict"}


def parsed(*releases, **changes) -> SitePolicy:
    return parse_policy(policy(*releases, **changes), "here")


def test_noise_is_the_multiplier_times_the_sensitivity_of_the_unit():
    assert parsed().rule_for(UPDATE, "update").treatment == ClipAndNoise(1.0, 32.0, Unit.SITE)
    record = parsed(update_rule(clip=0.5), unit="presence").rule_for(UPDATE, "update").treatment
    assert record == ClipAndNoise(0.5, 8.0, Unit.PRESENCE)
    sigma = {"kind": "model_update", "name": "*", "treatment": "clip_and_noise", "clip": 1, "sigma": 3}
    assert parsed(sigma | {"running_statistics": "drop"}).rule_for(UPDATE, "x").treatment == ClipAndNoise(
        1.0, 3.0, Unit.SITE, "drop"
    )


def test_every_treatment_can_be_had():
    found = parse_policy(
        policy(
            {"kind": "embeddings", "name": "e", "treatment": "clip_and_noise", "clip": 1, "sigma": 9, "entries": ["x"]},
            {"kind": "class_statistics", "name": "relation", "treatment": "minimum_support", "minimum": 10},
            {"kind": "soft_labels", "name": "rows", "treatment": "quantise", "levels": 20, "entries": ["rows"]},
            {"kind": "model_update", "name": "private", "treatment": "record_level", "min_noise_multiplier": 1.1},
            {"kind": "discriminator", "name": "d", "treatment": "unmodified", "entries": ["*.weight"]},
            {"kind": "curves", "name": "curves_*", "treatment": "minimum_support", "minimum": 20},
            unit="record",
        ),
        "here",
    )
    assert [rule.treatment for rule in found.releases] == [
        ClipAndNoiseSamples(1.0, 9.0),
        MinimumSupport(10),
        Quantise(20),
        RecordLevel(1.1),
        Unmodified(),
        CurveSupport(20),
    ]
    assert found.releases[1].entries == ("matrix", "support")
    assert found.releases[4].entries == ("*.weight",)
    assert found.releases[5].entries == ("counts",)


@pytest.mark.parametrize("kind", ["class_statistics", "curves"])
def test_five_patients_are_needed_where_the_policy_sets_no_minimum(kind):
    (rule,) = parsed({"kind": kind, "name": "*", "treatment": "minimum_support"}).releases
    assert rule.treatment.minimum == 5


def test_unnamed_releases_are_denied_and_the_first_rule_decides():
    rules = parsed({"kind": "model_update", "name": "secret*", "treatment": "deny"}, update_rule(name="*"))
    assert rules.rule_for(UPDATE, "secret-update") is None
    assert rules.rule_for(UPDATE, "update") is not None
    assert rules.rule_for(ReleaseKind.SOFT_LABELS, "update") is None
    assert rules.scalar_rule_for("validation.accuracy") is None
    assert parsed(releases=[]).rule_for(UPDATE, "update") is None


def test_two_rules_or_scopes_of_one_name_are_refused_as_one_of_them_would_not_count():
    denied = update_rule() | {"treatment": "deny"}
    for entry in ("clip", "noise_multiplier"):
        del denied[entry]
    for rules in ((update_rule(), denied), (update_rule(name=["update", "update"]),)):
        with pytest.raises(ConfigurationError, match=r"here\.releases: two rules have one kind and name; delete one"):
            parsed(*rules)
    assert len(parsed(update_rule(), update_rule(name="update*")).releases) == 2
    content = privacy_file(policy())
    content["scopes"] += content["scopes"]
    with pytest.raises(ConfigurationError, match=r"privacy\.json: scope 'strict' is there twice; delete one"):
        read_policies(content, "privacy.json")


def test_sizes_and_times_have_defaults_and_bounds():
    assert (parsed().image_size, parsed().answer_interval) == (1024, None)
    assert (parsed(image_size=224).image_size, parsed(answer_interval=60).answer_interval) == (224, 60.0)
    for wrong in ({"image_size": 0}, {"image_size": 1.5}, {"answer_interval": 0}, {"answer_interval": "1"}):
        with pytest.raises(ConfigurationError, match=f"here.{next(iter(wrong))}"):
            parsed(**wrong)


def test_targets_are_by_data_set():
    found = parsed(target_epsilon={"skin": 8, "*": 2.5})
    assert (found.target("skin"), found.target("other"), parsed().target("skin")) == (8.0, 2.5, math.inf)


def test_scalars_need_a_part_and_its_minimum_number_of_patients():
    found = parsed(scalars=[{"name": "validation.*", "part": "val", "minimum_support": 20}])
    assert found.scalar_rule_for("validation.f1").minimum_support == 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"here must be an object with .*, got \[\]"),
        ({"delta": 1e-5}, "here: 'unit' is missing"),
        (policy(unit="hospital"), "here.unit must be one of record, patient, presence, site, got 'hospital'"),
        (policy(delta=0), "here: delta must be above 0 and below 1"),
        (policy(delta="1e-5"), "here.delta must be a number, got '1e-5'"),
        (policy(epsilon=3), "here: unknown key 'epsilon'"),
        (policy(target_epsilon={"skin": -1}), "target_epsilon.skin must be positive"),
        (policy(target_epsilon=8), "target_epsilon must be an object of numbers by data set"),
        (policy(tasks=["train", "look"]), r"tasks\[1\] must be one of join, train, validate, test, sum, got 'look'"),
        (policy(update_rule(noise_multiplier=0)), r"releases\[0\]: noise_multiplier must be positive, got 0"),
        (policy(update_rule(noise_multiplier=-3)), r"releases\[0\]: noise_multiplier must be positive, got -3"),
        (policy(update_rule(clip=0)), r"clip must be positive, got 0"),
        (
            policy({"kind": "model_update", "name": "u", "treatment": "clip_and_noise", "sigma": 1}),
            "clip is missing: noise",
        ),
        (policy(update_rule(sigma=1)), "exactly one of sigma and noise_multiplier"),
        (policy(update_rule(kind="images")), r"releases\[0\].kind must be one of"),
        (policy(update_rule(treatment="hope")), r"releases\[0\].treatment must be one of"),
        (policy(update_rule(treatment=["deny"])), r"releases\[0\].treatment must be one of"),
        (policy(update_rule(levels=3)), r"releases\[0\]: unknown key 'levels'"),
        (policy(update_rule(name="")), "name must be a name or a pattern"),
        (
            policy(update_rule(running_statistics="hide")),
            "running_statistics must be one of refuse, average, drop, keep",
        ),
        (policy(update_rule(outside_budget="yes")), "outside_budget must be true or false"),
        (policy(update_rule(kind="soft_labels")), "clip_and_noise is not for soft_labels|entries is missing"),
        (policy({"kind": "soft_labels", "name": "r", "treatment": "quantise", "levels": 9}), "entries is missing"),
        (
            policy({"kind": "soft_labels", "name": "r", "treatment": "quantise", "entries": ["x"]}),
            "'levels' is missing",
        ),
        (policy(update_rule(kind="embeddings", entries=["x"])), "unit must be record, got site"),
        (
            policy({"kind": "class_statistics", "name": "r", "treatment": "minimum_support", "minimum": 1}),
            "at least 2, got 1",
        ),
        (
            policy({"kind": "class_statistics", "name": "r", "treatment": "unmodified"}),
            "unmodified is not for class_stat",
        ),
        (policy({"kind": "curves", "name": "r", "treatment": "unmodified"}), "unmodified is not for curves"),
        (
            policy({"kind": "class_statistics", "name": "r", "treatment": "minimum_support", "minimum": 0}),
            "at least 2, got 0",
        ),
        (
            policy({"kind": "model_update", "name": "u", "treatment": "record_level", "min_noise_multiplier": 1}),
            "protects a record or a patient, not site",
        ),
        (
            policy({"kind": "class_statistics", "name": "r", "treatment": "quantise", "levels": 9}),
            "quantise is not for",
        ),
        (policy({"kind": "soft_labels", "name": "r", "treatment": "unmodified"}), "entries is missing"),
        (policy(scalars=[{"name": "x", "part": "val"}]), r"scalars\[0\]: 'minimum_support' is missing"),
        (policy(scalars=[{"name": "x", "part": "all", "minimum_support": 2}]), r"scalars\[0\].part must be one of"),
        (policy(scalars=[{"name": "x", "part": "val", "minimum_support": 0}]), "minimum_support must be at least 1"),
        (
            policy(scalars=[{"name": "*", "part": "val", "minimum_support": 2}]),
            r"scalars\[0\].name: no number leaves by a pattern without a dot; list the numbers by name, or write",
        ),
    ],
)
def test_a_mistake_is_named(content, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_policy(content, "here")


@pytest.mark.parametrize(
    "rule",
    [
        {"kind": "model_update", "name": "update", "treatment": "unmodified"},
        {"kind": "class_statistics", "name": "relation", "treatment": "minimum_support", "minimum": 10},
        {"kind": "curves", "name": "*", "treatment": "minimum_support", "minimum": 10},
        update_rule(running_statistics="keep"),
    ],
)
def test_what_has_no_epsilon_needs_a_decision_where_there_is_a_target(rule):
    with pytest.raises(ConfigurationError, match=r"releases\[0\].*has no finite epsilon.*set outside_budget"):
        parsed(rule, target_epsilon={"*": 8})
    assert parsed(rule | {"outside_budget": True}, target_epsilon={"*": 8}).releases[0].outside_budget
    assert parsed(rule).target("skin") == math.inf


def test_a_file_has_the_gate_on_both_ways_and_a_default():
    assert read_policies(privacy_file(policy()), "privacy.json").keys() == {"strict"}
    with pytest.raises(ConfigurationError, match="'strict': task_data_filters"):
        read_policies(privacy_file(policy(), task_data_filters=[]), "privacy.json")
    with pytest.raises(ConfigurationError, match=r"task_result_filters.*filter"):
        read_policies(privacy_file(policy(), task_result_filters=None), "privacy.json")
    with pytest.raises(ConfigurationError, match="default_scope 'open'"):
        read_policies(privacy_file(policy()) | {"default_scope": "open"}, "privacy.json")
    with pytest.raises(ConfigurationError, match="'default_scope' is missing"):
        read_policies({"scopes": []}, "privacy.json")
    with pytest.raises(ConfigurationError, match=r"properties\.grandrounds is missing"):
        read_policies(privacy_file(policy(), properties={}), "privacy.json")


@pytest.mark.parametrize(
    "gate",
    [
        "SitePrivacyGate",
        {"path": GATE, "disabled": True},
        {"path": GATE, "direction": "in"},
        {"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy"},
    ],
)
def test_a_gate_outside_the_result_filters_is_refused(gate):
    with pytest.raises(ConfigurationError, match=r"task_result_filters.*filter"):
        read_policies(privacy_file(policy(), task_result_filters=[gate]), "privacy.json")
    assert read_policies(
        privacy_file(policy(), task_result_filters=[gate, {"path": GATE, "direction": "inout"}]), "here"
    )


@pytest.fixture(params=["sums.json", "open.json", "strict.json"])
def shipped(request):
    """The policy of a file that overlays install."""
    content = json.loads((OVERLAYS / request.param).read_text())
    (found,) = read_policies(content, request.param).values()
    return found


def test_our_policies_need_five_patients_behind_every_number_and_class(shipped):
    assert all(rule.minimum_support >= 5 for rule in shipped.scalars)
    rules = [rule for rule in shipped.releases if isinstance(rule.treatment, MinimumSupport)]
    assert all(rule.treatment.minimum >= 5 for rule in rules)


def test_our_policies_name_the_numbers_that_may_leave(shipped):
    for name in ("patient_4711", "pixel.17", "age", "loss.of.patient_7"):
        assert shipped.scalar_rule_for(name) is None


def test_our_open_policy_names_the_numbers_that_methods_need():
    (found,) = read_policies(json.loads((OVERLAYS / "open.json").read_text()), "privacy.json").values()
    for name in ("samples", "labelled", "public_images", "classes", "local_loss", "parameter_change", "batch_size"):
        assert found.scalar_rule_for(name).part in ("train", "labelled"), name
    parts = {"validation.f1_macro": "val", "common.auc_macro": "test", "own.accuracy": "test", "test.accuracy": "test"}
    assert {name: found.scalar_rule_for(name).part for name in parts} == parts


DENIED = {
    ReleaseKind.EMBEDDINGS,
    ReleaseKind.DISCRIMINATOR,
    ReleaseKind.SITE_MODEL,
}
"""Kinds that the open policy leaves to a hospital's own rules, as in docs/privacy.md."""
IN_SUMS_ALONE = {"losses"}
"""A table of ridge; where the server sees single sites, it sees them as metrics."""


@pytest.mark.parametrize("name", job_names())
def test_our_open_policy_allows_what_the_jobs_release(name):
    (found,) = read_policies(json.loads((OVERLAYS / "open.json").read_text()), "privacy.json").values()
    released = class_of(load_job(name).executor["path"]).releases.items()
    for release, kind in (one for one in released if one[0] not in IN_SUMS_ALONE):
        rule = found.rule_for(kind, release)
        assert (rule is None) == (kind in DENIED), (release, kind)


def test_our_policies_let_no_model_of_a_site_out(shipped):
    assert shipped.rule_for(ReleaseKind.SITE_MODEL, SITE_MODEL) is None


def test_our_open_policy_allows_soft_labels_by_the_name_of_their_tensor():
    (found,) = read_policies(json.loads((OVERLAYS / "open.json").read_text()), "privacy.json").values()
    assert set(found.rule_for(ReleaseKind.SOFT_LABELS, SOFT_LABELS).entries) == {VALUES}


@pytest.mark.parametrize("target", [{}, {"*": 2.0}])
@pytest.mark.parametrize("kind", [kind for kind, known in KINDS.items() if known.treatments])
def test_the_line_of_a_refusal_lets_its_release_out_and_nothing_else(kind, target):
    content = {"unit": "record", "delta": 1e-5, "target_epsilon": target}
    refusal = parse_policy(content, "here").refusal_of({"mine": kind})
    assert (refusal.final, refusal.rule) == (True, "releases")
    assert kind.value in refusal.cause
    amended = parse_policy({**content, "releases": json.loads(f"[{refusal.line}]")}, "here")
    assert amended.refusal_of({"mine": kind}) is None
    assert amended.refusal_of({"mine": kind, "other": kind}) is not None


def test_a_rule_has_a_list_of_names_and_a_reason():
    rules = [{"name": ["loss", "validation.*"], "part": "val", "minimum_support": 5, "reason": "the course"}]
    found = parse_policy({"unit": "record", "delta": 1e-5, "scalars": rules, "about": "little"}, "here")
    assert [(rule.name, rule.reason) for rule in found.scalars] == [
        ("loss", "the course"),
        ("validation.*", "the course"),
    ]
    assert found.about == "little"
    for wrong in ([], ["*"], [3]):
        with pytest.raises(ConfigurationError, match=r"scalars\[0\].name"):
            parse_policy({"unit": "record", "delta": 1e-5, "scalars": [{**rules[0], "name": wrong}]}, "here")
