"""The pages in Chromium: they update by themselves, and fit a phone and a screen.

If COREG_SCREENSHOTS names a folder (`make pages`), the test puts the pictures of the operator's guide there.
"""

import io
import os
from pathlib import Path

import pytest
from browser import needed, opened
from federation import ENDLESS, federation
from PIL import Image
from test_serve import free_port

pytestmark = pytest.mark.e2e

POINTS = "Math.max(0, ...[...document.querySelectorAll('.chart polyline')].map(line => line.points.numberOfItems))"
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


def pictured(browser, name):
    if folder := os.environ.get("COREG_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        taken = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
        taken.quantize(96).save(Path(folder) / f"{name}.png", optimize=True)  # a third of the size


def checked(browser, address):
    """The page at both widths, light and dark: nothing is cut off, small, faint or without a name."""
    browser.go(address)
    for width, height in (PHONE, SCREEN):
        browser.wide(width, height)
        for mode in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": mode}]
            browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            for what in (CUT_OFF, FAINT, NAMELESS):
                assert browser.script(what) == [], f"{address}, {width} px, {mode}"
            assert browser.script(SMALLEST) >= 10, f"{address}, {width} px: too small to read"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_pages_update_by_themselves_name_awaited_sites_and_fit_a_phone(tmp_path):
    needed("chromium", "chromedriver")
    port = free_port()
    with federation(tmp_path) as fed, opened(tmp_path / "profile") as browser:
        here = f"http://127.0.0.1:{port}"
        fed.study("monthly")
        fed.study("long", **ENDLESS)
        early = fed.submit("monthly")
        fed.serve("--web", f"127.0.0.1:{port}")
        browser.wide(*SCREEN)
        browser.go(here)
        assert browser.driver.title == "Overview · test"
        browser.until_says(early)
        # Nobody touches the page from here on: sites connect, and a run begins and ends on it.
        browser.script("window.untouched = true")
        agents = fed.all_stay()
        browser.until(
            "[...document.querySelectorAll('.site .badge')].filter(b => b.innerText == 'connected').length == 3"
        )
        browser.until_says("converged")
        assert browser.script("window.untouched && document.getElementById('live').innerText") == "page refreshes"

        live = fed.submit("long")
        link = f"document.querySelector('a[href=\"/run/{live}\"]')"
        browser.until(f"{link} && ({link}.click() || true)")  # at once: the page is put in place anew meanwhile
        browser.until(f"{POINTS} > 3")
        browser.script("window.untouched = true")
        before = browser.script(POINTS)
        browser.until(f"{POINTS} > {before + 5}")
        assert browser.script("window.untouched"), "the same page: it was put in place by itself"
        assert browser.script("document.querySelector('#state .badge').innerText") == "running"

        agents["west"].kill()
        browser.until("document.getElementById('text').innerText.startsWith('waiting for west to ')")
        pictured(browser, "run")
        browser.go(f"{here}/")
        awaited = "[...document.querySelectorAll('.site')].find(c => c.querySelector('h3').innerText == 'west')"
        browser.until(f"{awaited}.innerText.includes('away') && {awaited}.innerText.includes('awaited')")
        pictured(browser, "federation")
        browser.script("[...document.querySelectorAll('input[name=run]')].forEach(box => box.click())")
        browser.script("document.querySelector('#runs form button').click()")
        browser.until_says("Compare runs")
        assert "long" in browser.text()
        assert "objective coupling" in browser.text()

        for path in ("/", f"/run/{early}", f"/run/{live}", f"/compare?run={early}&run={live}", "/run/nothing"):
            checked(browser, here + path)
            if path == f"/run/{live}":
                pictured(browser, "phone")
        told = [line for line in browser.complaints() if "/run/nothing" not in line]  # a 404, as it should be
        assert told == []
