"""What a package index shows of ejcache, and that what publishes it is well formed."""

from __future__ import annotations

import json
import re
import sys
import tomllib

from helpers import ROOT, run_program

from tools.dependencies import reasons


def test_metadata():
    """The description has no link to a file, which would lead nowhere, and no address is a guess."""
    done = run_program([sys.executable, "-m", "hatchling", "metadata"], cwd=ROOT)
    shown = json.loads(done.stdout)
    text = shown["readme"]["text"]
    assert "[" not in re.sub(r"`[^`]*`|```.*?```|\[[^]]*\]\((https?://|#)[^)]*\)", "", text, flags=re.DOTALL)
    assert " questions, messages, and how to remove ejcache " in text
    assert "urls" not in shown
    assert {"azure", "s3"} <= set(shown["optional-dependencies"])
    assert "Typing :: Typed" in shown["classifiers"]
    assert [each for each in shown["classifiers"] if each.startswith("Operating")] == [
        "Operating System :: POSIX :: Linux"
    ]
    tested = {path.stem.removeprefix("py") for path in (ROOT / "constraints").glob("py*.txt")}
    assert {each.rpartition(" ")[2] for each in shown["classifiers"] if ":: 3." in each} == tested
    assert (ROOT / "src" / "ejcache" / "py.typed").exists()


def test_dependencies_have_reasons():
    """Each direct dependency names the hit or the command that needs it, and no version of typer is kept out."""
    named = reasons()
    assert all(re.search(r"\bhit\b|`ejcache |every command", why) for why in named.values()), named
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (typer,) = [each for each in declared if each.startswith("typer")]
    assert "<" not in typer


def test_workflows_are_well_formed():
    """The workflows of this repository, and those among the examples, are what each service accepts."""
    files = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), *sorted((ROOT / "examples").glob("github_*.yml"))]
    assert len(files) == 5
    kinds = {"github-workflows": files, "gitlab-ci": ["gitlab_ci.yml"], "buildkite": ["buildkite.yml"]}
    import check_jsonschema  # it takes a while, and only this test needs it

    for kind, each in kinds.items():
        schema = ["--builtin-schema", f"vendor.{kind}"]
        paths = [ROOT / "examples" / path for path in each]
        assert check_jsonschema.main([*schema, *map(str, paths)], standalone_mode=False) == 0


def test_each_change_is_of_a_known_kind():
    """A file of `changes/` that the tool would not take, or an empty one, is found here and not at a release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = {each["directory"] for each in project["type"]}
    page = (ROOT / project["directory"] / "README.md").read_text()
    assert kinds <= set(re.findall(r"`(\w+)`", page))
    for path in (ROOT / project["directory"]).iterdir():
        if path.name not in project["ignore"]:
            assert re.fullmatch(rf"\+?[\w-]+\.({'|'.join(kinds)})\.md", path.name), path.name
            assert path.read_text().strip().endswith("."), path.name
