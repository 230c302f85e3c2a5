"""The page of a site's images as a network sees them, for people at the site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grandrounds import __version__
from grandrounds.data.appearance import DONE
from grandrounds.data.fitness import Finding
from grandrounds.data.images.files.picture import count_rules
from grandrounds.data.images.sizing import SIZINGS
from grandrounds.data.site import SiteData
from grandrounds.files import write_bytes
from grandrounds.reporting.local.samples import Shown, class_samples, suspicious
from grandrounds.reporting.parts import page_template


def write_local_page(data: SiteData, site: str, path: Path, sizing: str = "exact", preprocess: str = "none") -> Finding:
    """Write the page about a site's images, for its owner alone.

    Args:
        data: of the site.
        site: its name.
        path: of the page, which is replaced.
        sizing: the problem's preprocessing that ``data`` were read with.
        preprocess: what else the site's entry of ``grandrounds.json`` has done to them.

    Returns:
        One line that counts rules and suspicions; a warning if there are suspicions.
    """
    suspicions, looked_at = suspicious(data, site)
    rules = count_rules(data.cache.rules)
    page = page_template("local.html").render(
        site=site,
        images=len(data.names),
        unreadable=len(data.cache.quarantined),
        looked_at=looked_at,
        shape=data.images.shape[1:],
        how=SIZINGS[sizing].meaning if preprocess == "none" else f'"preprocess": "{preprocess}"',
        rules=[(rule, meaning, rules[rule]) for rule, meaning in DONE.items() if rules[rule]],
        suspicions=suspicions,
        classes=class_samples(data, site),
        version=__version__,
    )
    write_bytes(path, page.encode(), private=True)
    counted = [*sorted(rules.items()), *((shown.title, shown.images) for shown in suspicions if shown.images)]
    return _told(site, path, looked_at, counted, suspicions)


def _told(
    site: str, path: Path, looked_at: int, counted: Sequence[tuple[str, int]], suspicions: Sequence[Shown]
) -> Finding:
    doubtful = any(shown.images for shown in suspicions)
    listed = "; ".join(f"{name}: {count} images" for name, count in counted) or "no rule of decoding applied"
    nothing = "" if doubtful else "; nothing suspicious"
    message = f"{site}: {listed}{nothing} ({looked_at} images looked at, see {path})"
    return Finding("warning" if doubtful else "ok", "page", message)
