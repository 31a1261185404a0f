"""What a package index shows of ejcache."""

from __future__ import annotations

import json
import re
import sys

from helpers import ROOT, run_program


def test_metadata():
    """The description has no link to a file, which would lead nowhere, and no address is a guess."""
    done = run_program([sys.executable, "-m", "hatchling", "metadata"], cwd=ROOT)
    shown = json.loads(done.stdout)
    text = shown["readme"]["text"]
    assert "[" not in re.sub(r"`[^`]*`|```.*?```|\[[^]]*\]\((https?://|#)[^)]*\)", "", text, flags=re.DOTALL)
    assert "· settings ·" in text
    assert "urls" not in shown
