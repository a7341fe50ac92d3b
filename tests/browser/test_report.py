"""The report in a real browser: drawn, silent, readable on a phone, in the dark and on paper."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eigenscape.report import write_report
from eigenscape.runs import save_run
from tests.report import samples

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

BROWSERS = ("chromium", "google-chrome", "chromium-browser")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser on this machine (looked for {', '.join(BROWSERS)})")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    folder = tmp_path_factory.mktemp("runs")
    many = [f"stages.{i // 8}.blocks.{i % 8}.attention.projection" for i in range(40)]
    records = {
        "plain": samples.analysis(),
        "nasty": samples.analysis(n=40, names=[samples.NASTY, "b"], title=samples.NASTY),
        "many": samples.analysis(n=40, names=many),
        "tiny": samples.tiny(),
        "training": samples.training(),
    }
    found = {"plain": save_run(records.pop("plain"), folder / "plain") / "report.html"}
    found |= {name: write_report(r, folder / f"{name}.html") for name, r in records.items()}
    torch.set_default_dtype(before)
    return found


class Visit:
    """One page, with everything that it said and asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(
            **{"viewport": DESKTOP, "color_scheme": "light"} | options
        )
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn=yes]", timeout=60_000)

    def drawn(self) -> list[dict[str, Any]]:
        """Return figure, number of drawn shapes and of points of each plot."""
        script = """plots => plots.map(plot => ({
            figure: plot.closest('figure').id,
            shapes: plot.querySelectorAll(
                '.scatterlayer path, .heatmaplayer image, .barlayer path').length,
            points: plot.data.reduce((sum, t) => sum + (t.z || t.x).length, 0),
        }))"""
        return list(self.page.eval_on_selector_all(".plot", script))

    def wide(self) -> int:
        """Return by how many pixels the page is wider than the screen."""
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.page.evaluate(script))

    def backgrounds(self) -> set[str]:
        """Return the colours that the plots are painted on."""
        script = """plots => plots.map(
            plot => getComputedStyle(plot.querySelector('.main-svg')).background)"""
        return {
            text.split(")")[0] + ")" for text in self.page.eval_on_selector_all(".plot", script)
        }


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    visits: list[Visit] = []

    def go(path: Path, **options: Any) -> Visit:
        visits.append(Visit(browser, path, **options))
        return visits[-1]

    yield go
    for one in visits:
        one.context.close()


CASES = {
    "plain": DESKTOP,
    "nasty": DESKTOP,
    "tiny": DESKTOP,
    "plain, phone": PHONE,
    "many, phone": PHONE,
    "training, phone": PHONE,
}


@pytest.mark.parametrize(("name", "screen"), CASES.items(), ids=CASES.keys())
def test_it_is_drawn_silent_alone_and_fits(
    visit: Any, reports: dict[str, Path], name: str, screen: dict[str, int]
) -> None:
    path = reports[name.split(",")[0]]
    seen = visit(path, viewport=screen)
    assert seen.said == []
    assert seen.asked == [path.as_uri()]
    plots = seen.drawn()
    assert plots
    assert all(plot["shapes"] > 0 and plot["points"] > 0 for plot in plots), plots
    assert seen.wide() <= 0
    anchors = seen.page.eval_on_selector_all(
        "a[href^='#']", "links => links.map(a => a.getAttribute('href').slice(1))"
    )
    assert anchors
    assert all(seen.page.evaluate("id => !!document.getElementById(id)", key) for key in anchors)
    assert seen.page.title().startswith(seen.page.inner_text("h1"))


def test_an_eigenvalue_says_its_residual(visit: Any, reports: dict[str, Path]) -> None:
    seen = visit(reports["plain"])
    point = seen.page.locator("#hessian-spectrum .plot .scatterlayer .trace .points path").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    label = seen.page.locator("#hessian-spectrum .hoverlayer .hovertext")
    label.first.wait_for()
    text = label.first.text_content()
    assert "λ = 11" in text
    assert "residual" in text
    assert "rank 1 from the top" in text


def test_the_theme_button_paints_page_and_plots_again(visit: Any, reports: dict[str, Path]) -> None:
    seen = visit(reports["tiny"])
    light = seen.backgrounds()
    assert light == {"rgb(255, 255, 255)"}
    assert seen.page.inner_text("#theme") == "Dark"
    seen.page.click("#theme")
    seen.page.wait_for_selector("html[data-theme=dark]")
    dark = seen.backgrounds()
    assert dark == {"rgb(23, 28, 33)"}
    assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") in dark
    seen.page.click("#theme")
    assert seen.backgrounds() == light
    assert seen.said == []


def test_the_system_decides_at_first(visit: Any, reports: dict[str, Path]) -> None:
    seen = visit(reports["tiny"], color_scheme="dark")
    assert seen.backgrounds() == {"rgb(23, 28, 33)"}


def test_print_is_white_static_and_fits(visit: Any, reports: dict[str, Path]) -> None:
    seen = visit(reports["plain"], color_scheme="dark", viewport={"width": 680, "height": 900})
    seen.page.emulate_media(media="print", color_scheme="dark")
    seen.page.wait_for_selector("html[data-theme=light]")
    assert seen.backgrounds() == {"rgb(255, 255, 255)"}
    assert (
        seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert not seen.page.locator("#theme").is_visible()
    assert seen.wide() <= 0
    assert seen.page.pdf(format="A4")[:5] == b"%PDF-"
    seen.page.emulate_media(media="screen")
    seen.page.wait_for_selector("html[data-theme=dark]")
    assert seen.said == []


def test_one_layer_can_be_picked(visit: Any, reports: dict[str, Path]) -> None:
    seen = visit(reports["many"])
    name = "stages.0.blocks.3.attention.projection"
    seen.page.select_option("select[data-pick=input-output-spectra]", name)
    faint = seen.page.evaluate(
        """() => document.querySelector('#input-output-spectra .plot').data
            .map(t => [t.meta, t.opacity])"""
    )
    assert [meta for meta, opacity in faint if opacity == 1] == [name]
    assert sum(opacity < 0.2 for _, opacity in faint) == 39


def test_linked_panels_zoom_together(visit: Any, reports: dict[str, Path]) -> None:
    seen = visit(reports["plain"])
    ranges = """() => {
        const plots = [...document.querySelectorAll('#three-matrices .plot')];
        return plots.map(p => p.layout.xaxis.range.map(v => Math.round(v)));
    }"""
    seen.page.evaluate(
        """() => Plotly.relayout(document.querySelector('#three-matrices .plot'),
            {'xaxis.range[0]': 0, 'xaxis.range[1]': 5})"""
    )
    seen.page.wait_for_timeout(300)
    assert seen.page.evaluate(ranges) == [[0, 5]] * 3
    # A second zoom shows that the panels still listen.
    seen.page.evaluate(
        """() => Plotly.relayout(document.querySelectorAll('#three-matrices .plot')[2],
            {'xaxis.range[0]': 1, 'xaxis.range[1]': 2})"""
    )
    seen.page.wait_for_timeout(300)
    assert seen.page.evaluate(ranges) == [[1, 2]] * 3


def test_numbers_open_and_files_are_there(visit: Any, reports: dict[str, Path]) -> None:
    seen = visit(reports["plain"])
    seen.page.click("#top-eigenvalues summary")
    assert seen.page.locator("#top-eigenvalues table").is_visible()
    assert "11" in seen.page.inner_text("#top-eigenvalues tbody")
    links = seen.page.eval_on_selector_all(".files a", "a => a.map(x => x.getAttribute('href'))")
    assert len(links) == 20
    assert all((reports["plain"].parent / link).is_file() for link in links)
