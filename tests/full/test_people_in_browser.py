"""The pages for people and the report in a real Chromium: two widths, light and dark, keyboard alone, and axe."""

import contextlib
import functools
import http.server
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from packaging.utils import canonicalize_name
from playwright.sync_api import Browser, Page, sync_playwright

from builder.commands.report import report_page
from tests.conftest import lacking
from tests.fixtures.made_up_index import LONG, make_empty_index, make_index
from tests.fixtures.servers import running
from tests.unit.loopback import serving
from tests.unit.publish.runs.make import run as made_up_run

PHONE, DESKTOP = 390, 1280
PAGES = (
    "",
    "projects/many-cells/",
    "projects/stable-ext/",
    "projects/yanked-ext/",
    "projects/old-ext/",
    "projects/untested/",
    f"projects/{canonicalize_name(LONG)}/",
)
#: What Tab stops at, in the order of the page.
_STOPS = (
    "[...document.querySelectorAll('a[href], button, input, summary, [tabindex]')].filter(e => e.checkVisibility())"
)
_FOCUSED = """() => {
  const element = document.activeElement, style = getComputedStyle(element), box = element.getBoundingClientRect();
  return {
    number: STOPS.indexOf(element),
    outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
    seen: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
  };
}""".replace("STOPS", _STOPS)


class _Files(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, as any web server does, without a log."""

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def static_server(root: Path) -> Iterator[str]:
    """The URL of a plain web server for a folder."""
    with serving(functools.partial(_Files, directory=str(root))) as address:
        yield f"http://{address}/"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the made-up index."""
    folder = tmp_path_factory.mktemp("people")
    make_index(folder / "index", folder / "work")
    return folder / "index"


@pytest.fixture(scope="module")
def site(root: Path) -> Iterator[str]:
    """The URL of the made-up index on a plain web server."""
    with static_server(root) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; its sandbox does not work for root."""
    path = shutil.which("chromium")
    if path is None:
        lacking("there is no chromium; `tests/fixtures/install-chromium` installs it on Debian")
    options = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=options)
        yield chromium
        chromium.close()


@contextlib.contextmanager
def opened(browser: Browser, url: str, *, width: int = DESKTOP, **options: Any) -> Iterator[Page]:
    """Yield a page of a new window. Afterwards, check that the console is empty and no other host got a request."""
    context = browser.new_context(viewport={"width": width, "height": 844}, **options)
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    yield page
    context.close()
    origin = "/".join(url.split("/")[:3]) + "/"
    assert said == []
    assert [one for one in asked if not one.startswith((origin, "data:,"))] == []


def findings(page: Page) -> list[str]:
    """The serious and critical findings of axe, with the elements that they are about."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['target']}: {node['failureSummary']}"
        for one in found
        if one["impact"] in {"serious", "critical"}
        for node in one["nodes"]
    ]


def visible(page: Page, selector: str) -> list[str]:
    """The texts of the visible elements."""
    return page.locator(selector).filter(visible=True).all_inner_texts()


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the first element of a selector has the focus."""
    for _ in range(300):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {selector}")


def copied(page: Page, key: str) -> str:
    """Press a key, wait until the page says that it copied, and return what is in the clipboard."""
    page.evaluate("navigator.clipboard.writeText('')")
    page.evaluate(
        """() => {
          window.heard = [];
          const watch = new MutationObserver(changes => heard.push(...changes.map(one => one.target.textContent)));
          watch.observe(document.body, {childList: true, subtree: true});
        }"""
    )
    page.keyboard.press(key)
    page.wait_for_function("heard.filter(text => text === 'Copied').length === 2")  # the button and the status
    return str(page.evaluate("navigator.clipboard.readText()"))


@pytest.mark.parametrize("width", [360, PHONE, DESKTOP])
def test_no_column_of_the_wheels_is_cut(browser: Browser, site: str, width: int) -> None:
    with opened(browser, site, width=width) as page:
        for path in PAGES[1:]:
            page.goto(site + path)
            # As long as those of real wheels: name, GPU code and evidence.
            page.evaluate("""for (const row of document.querySelectorAll("[aria-label^='Wheels of'] tbody tr")) {
                const cells = row.querySelectorAll('td');
                cells[0].querySelector('code').textContent =
                    'a_long_project-1.0.3+cu130.torch2.11-cp312-cp312-manylinux_2_34_x86_64.whl';
                cells[3].textContent = 'sm_75, sm_80, sm_86, sm_90, sm_100, sm_120, compute_120';
                cells[5].append(', provenance, SBOM');
            }""")
            width_of = "scrolled => scrolled.scrollWidth - scrolled.clientWidth"
            cut = page.evaluate(f"""[...document.querySelectorAll("[aria-label^='Wheels of']")].map({width_of})""")
            assert all(pixels <= 0 for pixels in cut), path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the report of a made-up run on a plain web server."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "index.html").write_text(report_page(made_up_run(folder)))
    with static_server(folder) as url:
        yield url


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an index without a wheel."""
    folder = tmp_path_factory.mktemp("empty")
    make_empty_index(folder / "index", folder)
    with static_server(folder / "index") as url:
        yield url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_axe_finds_nothing_serious(
    browser: Browser, site: str, report: str, empty: str, scheme: Literal["light", "dark"], width: int
) -> None:
    shown = {**{site + path: "" for path in PAGES}, report: "Timeline", empty: "no wheel yet"}
    for url, text in shown.items():
        with opened(browser, url, width=width, color_scheme=scheme) as page:
            assert text in page.inner_text("main")
            page.evaluate("for (const more of document.querySelectorAll('details')) more.open = true")
            assert findings(page) == [], url
            assert page.evaluate("document.documentElement.scrollWidth") <= width, url


def test_axe_finds_bad_contrast_and_a_field_without_a_label(browser: Browser, site: str) -> None:
    with opened(browser, site) as page:
        page.evaluate("document.querySelector('h1').style.color = '#ddd'")
        page.evaluate("document.querySelector('label').replaceWith(document.querySelector('#filter'))")
        assert sorted(one.partition(":")[0] for one in findings(page)) == ["color-contrast", "label"]


@pytest.mark.parametrize(
    ("path", "width"), [("", PHONE), ("projects/stable-ext/", PHONE), (PAGES[2], DESKTOP), ("report", PHONE)]
)
def test_tab_stops_at_everything_in_order_and_shows_where_it_is(
    browser: Browser, site: str, report: str, path: str, width: int
) -> None:
    with opened(browser, report if path == "report" else site + path, width=width) as page:
        count = page.evaluate(f"{_STOPS}.length")
        assert count > 5
        for number in range(count):
            page.keyboard.press("Tab")
            focused = page.evaluate(_FOCUSED)
            assert focused["number"] == number
            assert focused["outline"] >= 2, number
            assert focused["seen"], number


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_key_copies_the_command(browser: Browser, site: str, key: str) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    with opened(browser, f"{site}projects/stable-ext/", permissions=permissions) as page:
        tab_to(page, "button[aria-label^='Copy the uv']")
        assert copied(page, key) == f"uv pip install --index {site}cu132/ stable-ext==1.0+cu13"


def test_without_a_clipboard_the_command_is_selected(browser: Browser, site: str) -> None:
    with opened(browser, site) as page:
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as without HTTPS
        page.goto(f"{site}projects/stable-ext/")
        tab_to(page, "button[aria-label^='Copy the pip']")
        page.keyboard.press("Enter")
        page.wait_for_function("document.getElementById('said').textContent")
        assert page.inner_text("#said") == "Selected; press Ctrl+C to copy"
        selected = page.evaluate("getSelection().toString()")
        assert selected == f"pip install --extra-index-url {site}cu132/ stable-ext==1.0+cu13"


def test_the_filter_of_the_first_page(browser: Browser, site: str) -> None:
    with opened(browser, site, width=PHONE) as page:
        everything = visible(page, ".projects li")
        assert len(everything) == 6
        tab_to(page, "#filter")
        page.keyboard.type("Stable_E")
        assert visible(page, ".projects li") == ["stable-ext"]
        assert page.inner_text("#count") == "1 of 6 shown"
        page.keyboard.press("Escape")
        assert visible(page, ".projects li") == everything
        assert page.inner_text("#count") == ""


def test_the_filter_of_a_project(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}projects/many-cells/") as page:
        tab_to(page, "#filter")
        page.keyboard.type("torch 2.11 cu130")
        assert {name.split("-")[1] for name in visible(page, "tbody code")} == {"1.0+cu130.torch2.11"}
        assert visible(page, ".target") == ["cu130/torch2.11"]
        page.keyboard.press("Escape")
        assert len(visible(page, "tbody code")) > 5


def test_without_javascript_the_commands_are_there(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}projects/stable-ext/", java_script_enabled=False) as page:
        assert visible(page, ".command")[0] == "pip install --extra-index-url INDEX/cu132/ stable-ext==1.0+cu13"
        assert "Replace INDEX by the address" in page.inner_text("main")
        assert visible(page, "button, input") == []
        page.locator("summary").first.click()
        assert len(visible(page, ".command")) > 2
        page.goto(site)
        assert len(visible(page, ".projects a")) == 6


def test_a_page_runs_no_foreign_script(browser: Browser, site: str) -> None:
    run = "const s = document.createElement('script'); s.textContent = 'window.foreign = 1'; document.body.append(s)"
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{site}projects/yanked-ext/")
    page.evaluate(run)
    assert page.evaluate("window.foreign") is None
    assert page.evaluate("document.querySelector('#filter').closest('p').hidden") is False  # its own script ran
    context.close()


def test_our_server_shows_the_pages_and_the_evidence(browser: Browser, root: Path) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    with running(root) as server, opened(browser, f"{server.url}/", permissions=permissions) as page:
        page.get_by_role("link", name="stable-ext", exact=True).first.click()
        page.wait_for_url("**/stable-ext/")
        tab_to(page, "button")
        assert copied(page, "Enter").split()[3] == f"{server.url}/cu132/"
        page.get_by_role("link", name="proofs of").first.click()
        assert '"check": "gpu-values"' in page.inner_text("body")
        assert page.url.endswith(".proofs.json")
        page.go_back()
        page.get_by_role("link", name="METADATA of").first.click()
        assert "Name: stable_ext" in page.inner_text("body")
