"""The site's search answers newcomers: the page with the answer is the first hit."""

import json
import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("material", reason="the extra docs is not installed")
lunr = pytest.importorskip("lunr")
from lunr.builder import Builder  # noqa: E402
from lunr.pipeline import Pipeline  # noqa: E402
from lunr.stop_word_filter import stop_word_filter  # noqa: E402

from tests.documentation.pages import ROOT  # noqa: E402

pytestmark = pytest.mark.long
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
QUESTIONS = {
    "GPU": "how-to/gpu",
    "DICOM": "how-to/own-images",
    "epsilon": "privacy",
    "firewall port": "hospital",
    "asterisk": "when-something-goes-wrong",
    "few cases": "when-something-goes-wrong",
    "delete data": "hospital",
    "upgrade": "how-to/move-a-machine",
    "class imbalance": "methods/supervised",
    "troubleshooting": "when-something-goes-wrong",
    "site was dropped": "when-something-goes-wrong",
    "resume": "tutorial",
    "command not found": "when-something-goes-wrong",
    "out of memory": "when-something-goes-wrong",
    "excel": "how-to/excel-sheet",
    "which method": "how-to/which-method",
    "confidence interval": "how-to/results",
    "onnx": "how-to/results",
    "timm": "how-to/pretrained-networks",
    "own loss": "how-to/add-a-method",
    "augmentation": "how-to/add-an-augmentation",
    "slurm": "how-to/slurm",
    "differential privacy": "privacy",
    "learning_rate": "reference/options",
    "external validation": "how-to/unseen-hospital",
    "GDPR": "data-protection",
    "seeds": "how-to/seeds",
    "statistics": "methods/statistics",
    "mlflow": "how-to/tracking",
    "multi label": "how-to/multi-label",
    "case": "glossary",
    "cite": "index",
    "MediSwarm": "nearest-work",
}
"""What newcomers type, and the page that answers it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built once."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def first_hit(site):
    """From a question to the first page, as Material's search has it: lunr's score, more for pages and for all words."""
    found = json.loads((site / "search" / "search_index.json").read_text())
    separator = re.compile(found["config"]["separator"])
    builder = Builder()
    builder.ref("location")
    builder.b(0)
    builder.pipeline = Pipeline()
    assert found["config"]["pipeline"] == ["stopWordFilter"]
    builder.pipeline.add(stop_word_filter)
    for name, field in found["config"]["fields"].items():
        builder.field(name, field["boost"], lambda page, name=name: words(page.get(name, ""), separator))
    pages = {}
    for page in found["docs"]:
        pages.setdefault(page["location"].partition("#")[0], page["location"])
        builder.add(page, {"boost": page.get("boost", 1)})
    index = builder.build()

    def ask(question):
        typed = question.lower().split()

        def score(hit):
            path = hit["ref"].partition("#")[0]
            matched = sum(any(term.startswith(word) for term in hit["match_data"].metadata) for word in typed)
            return hit["score"] * (1 + ((pages[path] == hit["ref"]) + matched / len(typed)) ** 2)

        hits = sorted(index.search(" ".join(f"{word}*" for word in typed)), key=score, reverse=True)
        return [*dict.fromkeys(hit["ref"].partition("#")[0].removesuffix(".html") for hit in hits)]

    return ask


def words(text, separator):
    """The words of a field, without markup."""
    parts = re.split(r"<[^>]*>", " ".join(text) if isinstance(text, list) else text)
    return [word for part in parts for word in separator.split(part.lower()) if word]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_page_with_the_answer_is_the_first_hit(question, first_hit):
    assert first_hit(question)[:1] == [QUESTIONS[question]]


@pytest.mark.skipif(not BROWSER, reason="no browser is installed")
def test_the_search_works_without_a_server(site):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000", "--dump-dom"]
    page = subprocess.run([*command, f"file://{site}/index.html?q=gpu"], capture_output=True, text=True, timeout=120)
    assert re.search(r'href="[^"]*how-to/gpu\.html" class="md-search-result__link', page.stdout)
