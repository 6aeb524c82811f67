"""What the files of the page must and must not hold; `test_page` tries them in a browser."""

import re

import pytest

from bighmm.explore.static_page import PAGE, bundle, write_page

SCRIPTS = sorted(PAGE.glob("*.js"))
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(")
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_text_becomes_markup(path):
    assert not MARKUP.search(path.read_text(encoding="utf-8"))


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_inline():
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace(NAMESPACE, "")
        assert not re.search(r"(?:https?:)?//[\w-]+\.\w", text), path.name
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)


def test_a_bundle_has_every_module_after_those_it_imports():
    order = re.findall(r"^modules\['([\w.]+)'\] = ", bundle(PAGE), re.MULTILINE)
    assert sorted(order) == [path.name for path in SCRIPTS if path.name != "theme.js"]
    for path in SCRIPTS:
        for other in re.findall(r'from "\./([\w.]+)"', path.read_text(encoding="utf-8")):
            assert order.index(other) < order.index(path.name)


def test_a_bundle_refuses_what_it_does_not_know(tmp_path):
    (tmp_path / "app.js").write_text('import * as all from "./other.js";\n')
    with pytest.raises(AssertionError, match="no form that the bundle knows"):
        bundle(tmp_path)
    (tmp_path / "app.js").write_text('import { a } from "./app.js";\n')
    with pytest.raises(AssertionError, match=r"import each other: app\.js -> app\.js"):
        bundle(tmp_path)


def test_an_exported_page_has_classic_scripts_only(tmp_path):
    write_page(tmp_path)
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "module" not in html
    for name in re.findall(r'(?:src|href)="((?:page|data)/[^"]+)"', html):
        assert name == "data/index.js" or (tmp_path / name).is_file(), name
