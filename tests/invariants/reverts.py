"""Repairs of holes, each with the smallest change that undoes it and the tests that must notice."""

from dataclasses import dataclass

HARNESS = "tests/invariants/test_non_interference.py"
GATE = "custom/grandrounds/privacy/gate"
SERVER = "custom/grandrounds/federation/server"


@dataclass(frozen=True)
class Revert:
    """A repair that is undone.

    Attributes:
        attack: what it stops, in a few words.
        place: the file.
        repaired: text that is there once.
        undone: what is put in its place.
        tests: of which at least one must fail.
    """

    attack: str
    place: str
    repaired: str
    undone: str
    tests: tuple[str, ...]


REVERTS = (
    Revert(
        "a failed validate or test is one bit about one image",
        f"{GATE}/filters.py",
        "        if facts.task in SCORES or (facts.task == JOIN and gate.relies_on_noise):\n",
        "        if not facts:\n",
        (HARNESS,),
    ),
    Revert(
        "a prediction that is not finite ends the scores",
        "custom/grandrounds/federation/site/scoring.py",
        "whole = total_probabilities(problem.kind, context.data.labels[rows], found.numpy())",
        "whole = found.numpy()",
        ("tests/unit/federation/site/test_scoring.py",),
    ),
    Revert(
        "a validate with weights of 3e38 under record-level privacy",
        f"{GATE}/gate.py",
        "if self._counted_update() is not None and not largest <= MAX_WEIGHT:",
        "if facts.task == TRAIN and self._counted_update() is not None and not largest <= MAX_WEIGHT:",
        ("tests/unit/privacy/gate/test_questions.py",),
    ),
    Revert(
        "576 questions by bisection",
        f"{GATE}/gate.py",
        "if facts.task in SCORES and self._scored(facts) > self.policy.scored_answers:",
        "if self._scored(facts) < 0:",
        ("tests/unit/privacy/gate/test_questions.py",),
    ),
    Revert(
        "validate, test and join after the budget is spent",
        f"{GATE}/gate.py",
        "if facts.task != TRAIN and facts.terms.models:",
        "if facts.task == JOIN and facts.task == TRAIN:",
        ("tests/unit/privacy/gate/test_questions.py",),
    ),
    Revert(
        "a training that fails where updates leave with noise",
        f"{GATE}/gate.py",
        "return facts.task == TRAIN and rule is not None and isinstance(rule.treatment, ClipAndNoise)",
        "return False",
        (HARNESS,),
    ),
    Revert(
        "the server asks for another precision than the policy demands",
        f"{GATE}/gate.py",
        "            self.policy.demands.require_task(facts.terms)\n",
        "",
        ("tests/unit/privacy/gate/test_questions.py",),
    ),
    Revert(
        "one of two hospitals sends an update of 1e30, or claims 1e9 samples",
        f"{SERVER}/robust.py",
        "MIN_VALUES = 3\n",
        "MIN_VALUES = 1\n",
        ("tests/unit/federation/server/test_robust.py",),
    ),
    Revert(
        "a median of zeros bounds nothing",
        f"{SERVER}/robust.py",
        "return multiple * statistics.median(own) if own else None",
        "return None",
        ("tests/unit/federation/server/test_robust.py",),
    ),
    Revert(
        "a table leaves without its small counts, which a total gives back",
        f"{GATE}/treatments.py",
        "        return has_small_counts(_table(tensors), self.minimum)\n",
        "        return False\n",
        ("tests/unit/privacy/gate/test_counts.py",),
    ),
    Revert(
        "numbers of images leave for some classes of a part",
        f"{GATE}/withheld.py",
        "if shown[table] != classes",
        "if not shown",
        ("tests/unit/privacy/gate/test_counts.py",),
    ),
    Revert(
        "an installed plug-in replaces the gate",
        "custom/grandrounds/plugins.py",
        "if plugin.distribution in {pin.name for pin in pins}]",
        "if pins is not None]",
        ("tests/unit/deployment/kit/test_distributions.py",),
    ),
    Revert(
        "a copy of an archive is a new budget",
        "custom/grandrounds/privacy/inventory.py",
        "return image_identity(reader.encoded(name))",
        'return {f"{id(reader)}/{name}"}',
        ("tests/unit/privacy/test_inventory.py",),
    ),
    Revert(
        "a name with dollar signs ends the report",
        "custom/grandrounds/plotting.py",
        "                text.set_parse_math(False)\n",
        "                text.set_parse_math(True)\n",
        ("tests/unit/reporting/test_page.py",),
    ),
    Revert(
        "a class name is a formula in a table",
        "custom/grandrounds/csv_files.py",
        "_FORMULA.match(text) and not is_number",
        "text is _FORMULA and not is_number",
        ("tests/unit/test_csv_files.py",),
    ),
    Revert(
        "decoded images are readable by other users",
        "custom/grandrounds/deployment/kit/service.py",
        "stream, kit.folder, umask=PRIVATE)",
        "stream, kit.folder)",
        ("tests/unit/deployment/test_containers.py",),
    ),
    Revert(
        "the systemd unit restricts nothing",
        "provisioning/systemd/grandrounds@.service",
        "CapabilityBoundingSet=\n",
        "",
        ("tests/unit/deployment/test_containers.py",),
    ),
    Revert(
        "a fault after the first image is named",
        f"{GATE}/filters.py",
        "        self.reads = True\n",
        "        self.reads = False\n",
        ("tests/federation/privacy/test_faults_before_images.py",),
    ),
)
