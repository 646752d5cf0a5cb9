"""The page in Chromium: it updates by itself, writes what a store says as text, and fits a phone
and a screen.

If COREG_SCREENSHOTS names a folder (`make pages`), the test puts the pictures of the operator's
guide there.
"""

import io
import os
from contextlib import closing
from pathlib import Path

import pytest
from browser import needed, opened
from federation import ENDLESS, federation
from PIL import Image
from store.filled import RECORDS, begun, noticed
from test_serve import free_port

from coordinator.machine import notices as n
from coordinator.store.runs import RunStore
from coordinator.store.status import Status
from coordinator.web.server import show
from coreg_core.outcomes import Notice

pytestmark = pytest.mark.e2e

POINTS = (
    "Math.max(0, ...[...document.querySelectorAll('polyline')].map(line =>"
    " line.points.numberOfItems))"
)
SMALLEST = """Math.min(...[...document.querySelectorAll('main *')].filter(e => e.matches('text') ||
    [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())).filter(e => e.getClientRects().length && !e.closest('title')
    ).map(e => parseFloat(getComputedStyle(e).fontSize) * (e.ownerSVGElement ?
    Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b) : 1)))"""
# Elements that stick out of the window, or whose content sticks out of them.
CUT_OFF = """[...document.querySelectorAll('header *, main *, footer')].filter(e => e.getClientRects().length &&
    !e.closest('svg, .hidden') && (e.getBoundingClientRect().right > innerWidth + 1 ||
    getComputedStyle(e).display != 'inline' && e.scrollWidth > e.clientWidth + 1)).map(e => e.outerHTML.slice(0, 120))"""
# Texts whose contrast with the nearest background is below 4.5 (WCAG 2.2, AA).
FAINT = """(() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const light = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => v / 255).map(
            v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
        if (c != 'rgba(0, 0, 0, 0)') return c; } return 'Canvas'; };
    const faint = (e) => { const style = getComputedStyle(e), [a, b] = [light(e.matches('text') ? style.fill : style.color),
        light(ground(e))]; return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5; };
    return [...document.querySelectorAll('body *')].filter(e => e.getClientRects().length && !e.closest('title') &&
        [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) && faint(e)).map(e => e.outerHTML.slice(0, 120)); })()"""
NAMELESS = """[...document.querySelectorAll('a, button, input, select, svg, img, progress')].filter(e =>
    e.getClientRects().length &&
    !(e.ariaLabel || e.labels?.length || e.textContent.trim() || e.alt === '')).map(e => e.outerHTML.slice(0, 120))"""
PHONE, SCREEN = (390, 844), (1280, 900)
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"
HOSTILE = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"


def pictured(browser, name):
    if folder := os.environ.get("COREG_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        taken = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
        taken.quantize(96).save(Path(folder) / f"{name}.png", optimize=True)  # a third of the size


def checked(browser):
    """The page at both widths, light and dark, all folds open: nothing is cut off, small, faint or
    without a name.
    """
    browser.script(
        "[...document.querySelectorAll('details')].forEach(each => { each.open = true; })"
    )
    for width, height in (PHONE, SCREEN):
        browser.wide(width, height)
        whole, window = browser.script(WIDTHS)
        assert (whole <= width, window) == (True, width), "no horizontal scrolling"
        for mode in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": mode}]
            browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            for what in (CUT_OFF, FAINT, NAMELESS):
                assert browser.script(what) == [], f"{width} px, {mode}"
            assert browser.script(SMALLEST) >= 10, f"{width} px: too small to read"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_words_of_a_store_are_text_at_any_width(tmp_path):
    needed("chromium", "chromedriver")
    path, at, port = tmp_path / "runs.sqlite", "2026-01-01T00:00:00.000+00:00", free_port()
    with closing(RunStore(path)) as runs, closing(Status(path)) as status:
        begun(runs, RECORDS, run="first", coupling=(0.1, 1.0))
        begun(runs, RECORDS[:4], run="r<b>2")
        told = (
            n.session_opened(HOSTILE, "0.3.0", "2027-01-01T00:00:00+00:00"),
            n.session_rejected("y" * 200, HOSTILE),
        )
        noticed(status, at, *told, Notice("stalled", f"stalled: {HOSTILE}", "warning", run="first"))
        status.set_service({"federation": HOSTILE, "sites": [HOSTILE, "b"]}, at)
    end = show(f"127.0.0.1:{port}", path, None)
    try:
        with opened(tmp_path / "profile") as browser:
            browser.wide(*SCREEN)
            browser.go(f"http://127.0.0.1:{port}/")
            browser.until("document.querySelector('#sites h3') !== null")
            assert browser.script("document.getElementById('name').textContent") == HOSTILE
            assert browser.script("document.title") == HOSTILE
            assert (
                browser.script("document.querySelectorAll('main script, main img, main b').length")
                == 0
            )
            for run in ("first", "r<b>2"):
                browser.script(f"(location.hash = '#run-' + encodeURIComponent({run!r}))")
                browser.until(f"document.getElementById('run-' + {run!r}) !== null")
                checked(browser)
            assert (
                browser.script("document.querySelectorAll('svg[role=img][aria-label]').length") == 2
            )
            browser.script("(location.hash = '#run-none')")
            browser.until(
                "document.getElementById('run').innerText == 'coreg-coordinator show none'"
            )
            browser.script("(location.hash = '#run-first')")
            browser.until("document.querySelectorAll('polyline').length == 4")
            assert browser.script("window.hit") is None
            assert browser.complaints() == []
    finally:
        end()


def test_the_page_updates_by_itself_and_names_awaited_sites(tmp_path):
    needed("chromium", "chromedriver")
    port = free_port()
    with federation(tmp_path) as fed, opened(tmp_path / "profile") as browser:
        fed.study("monthly")
        fed.study("long", **ENDLESS)
        early = fed.submit("monthly")
        coordinator = fed.serve("--web", f"127.0.0.1:{port}")
        browser.wide(*SCREEN)
        browser.go(f"http://127.0.0.1:{port}")
        browser.until_says(early)
        assert browser.driver.title == "test"
        # Nobody touches the page from here on: sites connect, and a run begins and ends on it.
        browser.script("(window.untouched = true)")
        agents = fed.all_stay()
        browser.until(
            "[...document.querySelectorAll('#sites .badge')].filter(b => b.innerText =="
            " 'connected').length == 3"
        )
        browser.until_says("converged")
        assert browser.script("document.getElementById('live').innerText") == "live"

        live = fed.submit("long")
        link = f"document.querySelector('#runs a[href=\"#run-{live}\"]')"
        browser.until(
            f"{link} && ({link}.click() || true)"
        )  # at once: the page is put in place anew meanwhile
        browser.until(f"{POINTS} > 3")
        assert (
            browser.script(f"document.querySelector('#run-{live} .badge').innerText") == "running"
        )
        browser.script("document.querySelector('#run summary').click()")
        rows = "document.querySelectorAll('#run details[open] tr').length"
        browser.until(f"{rows} > 3")
        before = browser.script(f"document.querySelector('#run-{live} dl').innerText")
        browser.until(
            f"document.querySelector('#run-{live} dl').innerText != {before!r} && {rows} > 3"
        )

        agents["west"].kill()
        browser.until(
            f"document.querySelector('#run-{live}').innerText.includes('waiting for west to ')"
        )
        west = (
            "[...document.querySelectorAll('#sites li')].find(c => c.innerText.startsWith('west'))"
        )
        browser.until(
            f"{west}.innerText.includes('away') && {west}.innerText.includes('awaited by {live}')"
        )
        assert browser.script("window.untouched"), "the same page: it was drawn by itself"
        pictured(browser, "run")
        browser.wide(*PHONE)
        pictured(browser, "phone")
        browser.wide(*SCREEN)
        browser.script("scrollTo(0, 0)")
        pictured(browser, "federation")
        checked(browser)
        assert browser.complaints() == []
        coordinator.kill()
        browser.until("document.getElementById('live').innerText == 'no connection'")
