"""The inspector's bundle is made of this project's own code alone: no other licence comes with it."""

from __future__ import annotations

import json

import pytest

import hatch_build

pytestmark = pytest.mark.xdist_group("packaging")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, dict[str, object]]:
    """What esbuild says it read, for the bundle as it is built, but written elsewhere."""
    folder = tmp_path_factory.mktemp("bundle")
    hatch_build.install()
    hatch_build.npm(
        *("run", "build", "--", f"--outfile={folder / 'widget.js'}"),
        f"--metafile={folder / 'meta.json'}",
    )
    return json.loads((folder / "meta.json").read_text(encoding="utf-8"))


def test_the_bundle_holds_no_code_of_others(made):
    """Else its licence would have to be in the wheel; see docs/decisions/0006-dependencies.md."""
    read = set(made["inputs"])
    assert "src/widget.ts" in read
    assert {name for name in read if not name.startswith("src/")} == set()


def test_the_bundle_leaves_no_import_to_the_page(made):
    (output,) = made["outputs"].values()
    assert output["imports"] == []
    assert output["exports"] == ["default"]
