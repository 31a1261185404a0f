"""Installed distributions are known by the names of their directories, whoever wrote them."""

from __future__ import annotations

from ejcache.util.dist_info import distributions_in


def test_names_and_versions(tmp_path):
    for name in ("ML_dtypes-0.5.1", "nvidia.cudnn__cu12-9.1.0.70", "old-name-1.0", "bare"):
        (tmp_path / f"{name}.dist-info").mkdir()
    (tmp_path / "ml_dtypes").mkdir()
    found = {each.name: (each.version, each.metadata) for each in distributions_in(str(tmp_path))}
    assert found == {
        "ml-dtypes": ("0.5.1", "ML_dtypes-0.5.1.dist-info"),
        "nvidia-cudnn-cu12": ("9.1.0.70", "nvidia.cudnn__cu12-9.1.0.70.dist-info"),
        "old-name": ("1.0", "old-name-1.0.dist-info"),
        "bare": ("", "bare.dist-info"),
    }
    assert list(distributions_in(str(tmp_path / "none"))) == []
