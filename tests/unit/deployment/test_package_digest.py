"""A wheel and its installation have one digest; one changed byte has another."""

import hashlib
import zipfile

import pytest

from grandrounds.deployment.kit.overlay import file_digest, installed_digest, wheel_digest
from grandrounds.errors import ConfigurationError

FILES = {"grandrounds/__init__.py": b"x = 1\n", "grandrounds/data/a.py": b"y = 2\n"}


def install(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / "grandrounds"


def wheel(folder, files):
    path = folder / "grandrounds-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("grandrounds-1.dist-info/RECORD", "")
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_the_digest_is_that_of_the_sorted_list_of_files(tmp_path):
    lines = "".join(sorted(f"{name}\0{hashlib.sha256(content).hexdigest()}\n" for name, content in FILES.items()))
    assert installed_digest(install(tmp_path, FILES)) == hashlib.sha256(lines.encode()).hexdigest()


def test_a_wheel_has_the_digest_of_its_installation_whatever_python_has_cached(tmp_path):
    package = install(tmp_path, {**FILES, "grandrounds/__pycache__/a.cpython-311.pyc": b"cache"})
    assert installed_digest(package) == wheel_digest(wheel(tmp_path, FILES))


@pytest.mark.parametrize(
    "changed",
    [
        {"grandrounds/__init__.py": b"x = 2\n"},
        {"grandrounds/more.py": b""},
        {"grandrounds/data/b.py": FILES["grandrounds/data/a.py"], "grandrounds/data/a.py": None},
    ],
)
def test_a_changed_added_or_renamed_file_shows(tmp_path, changed):
    files = {name: content for name, content in {**FILES, **changed}.items() if content is not None}
    assert installed_digest(install(tmp_path, files)) != wheel_digest(wheel(tmp_path, FILES))


def test_what_is_no_wheel_of_ours_is_refused(tmp_path):
    (tmp_path / "a.whl").write_text("no zip")
    with pytest.raises(ConfigurationError, match="cannot be read as a wheel"):
        wheel_digest(tmp_path / "a.whl")
    with pytest.raises(ConfigurationError, match="is no wheel of grandrounds"):
        wheel_digest(wheel(tmp_path, {"other/__init__.py": b""}))


def test_a_files_digest_is_sha256sums(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert file_digest(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
