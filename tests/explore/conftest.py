"""Served models of every kind, made once."""

import os

import pytest

pytest.importorskip("starlette", reason="the extra `explore` is not installed")
pytest.importorskip("uvicorn", reason="the extra `explore` is not installed")


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Runs with small random models, by kind."""
    from served import make_run

    folder = tmp_path_factory.mktemp("runs")
    kinds = ("two-level", "flat", "dense", "ngram")
    return {kind: make_run(folder / kind, kind) for kind in kinds} | {
        "no-corpus": make_run(folder / "no-corpus", corpus=False)
    }


@pytest.fixture(scope="session")
def opened(runs, tmp_path_factory):
    """All of them opened, as one server's models a, b, c, d, e."""
    from bighmm.explore import open_all

    before = os.environ.get("BIGHMM_CACHE")
    os.environ["BIGHMM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    try:
        return open_all(list(runs.values()))
    finally:
        if before is not None:
            os.environ["BIGHMM_CACHE"] = before


@pytest.fixture(scope="session")
def client(opened):
    """A client of a server with all of them; what is read from corpora has been read."""
    from served import Client

    from bighmm.explore import make_app

    with Client(make_app(opened)) as client:
        for one in opened:
            if one.survey.job is not None:
                one.survey.job.future.result(timeout=60)
        yield client


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """A server with tiny models, for a browser."""
    from explored import served_models

    with served_models(tmp_path_factory.mktemp("explored")) as site:
        yield site


@pytest.fixture(scope="session")
def one_page(site):
    """One browser for all tests, which is closed before the server that it asks."""
    from browser import find_browser, opened_browser

    with opened_browser(find_browser()) as browser:
        yield browser.page()


@pytest.fixture
def page(one_page):
    """The page, as large as on a desk, whose console must stay empty."""
    one_page.errors.clear()
    one_page.size(1200, 900)
    one_page.dark(False)
    yield one_page
    assert one_page.errors == []
