"""Which installed code is a library's, and which is the user's project that is installed as well."""

from __future__ import annotations

import json

import pytest

PROGRAM = """
    import json
    from ejcache.fingerprint.library import is_library_file
    import proj.model
    print(json.dumps([is_library_file(proj.model.__file__)]))
"""


@pytest.fixture
def installed(tmp_path):
    """Install the project with this provenance into a directory of packages, and return that directory."""

    def install(*, provenance, installer="pip", name="proj"):
        packages = tmp_path / "site-packages"
        information = packages / f"{name}-1.0.dist-info"
        (packages / "proj").mkdir(parents=True)
        information.mkdir()
        (packages / "proj" / "__init__.py").write_text("")
        (packages / "proj" / "model.py").write_text("")
        (information / "INSTALLER").write_text(installer + "\n")
        (information / "RECORD").write_text(
            f"proj/__init__.py,,\nproj/model.py,,\n{information.name}/RECORD,,\n../../bin/proj,,\n"
        )
        if provenance is not None:
            (information / "direct_url.json").write_text(json.dumps({"url": "file:///src", **provenance}))
        return packages

    return install


def answer(run_python, packages):
    done = run_python(PROGRAM, env={"PYTHONPATH": str(packages)})
    return json.loads(done.stdout.splitlines()[-1])[0]


@pytest.mark.parametrize(
    "provenance", [{"dir_info": {}}, {"archive_info": {"hash": "sha256=0"}}, {"vcs_info": {"vcs": "git"}}]
)
def test_an_installed_project_is_the_users(installed, run_python, provenance):
    """A distribution from a directory, a file or a repository is not a library, though it lies among libraries."""
    assert answer(run_python, installed(provenance=provenance)) is False


@pytest.mark.parametrize(
    ("provenance", "installer", "name"),
    [(None, "pip", "proj"), ({"dir_info": {}}, "conda", "proj"), ({"archive_info": {}}, "pip", "jaxlib")],
)
def test_other_distributions_are_libraries(installed, run_python, provenance, installer, name):
    """So is one from an index, one that conda has built, and JAX itself, however it was installed."""
    assert answer(run_python, installed(provenance=provenance, installer=installer, name=name)) is True


def test_damaged_provenance_is_none(installed, run_python):
    """A provenance that cannot be read makes no distribution a project."""
    packages = installed(provenance=None)
    (packages / "proj-1.0.dist-info" / "direct_url.json").write_text("{")
    assert answer(run_python, packages) is True
