"""The pages in a real browser, beside a federation at work: they load, move by themselves, name who is awaited, fit a phone.

Where COREG_SCREENSHOTS names a folder (`make pages`), the pictures of docs/how-to/monitor.md are put there.
"""

import io
import os
from pathlib import Path

import pytest
from browser import needed, opened
from federation import ENDLESS, federation
from PIL import Image
from test_serve import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

POINTS = "Math.max(0, ...[...document.querySelectorAll('polyline')].map(line => line.points.numberOfItems))"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALLEST = """Math.min(...[...document.querySelectorAll('main *')].filter(e => e.matches('text') ||
    [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())).filter(e => e.getClientRects().length).map(
    e => parseFloat(getComputedStyle(e).fontSize) * (e.ownerSVGElement ? e.getScreenCTM().a : 1)))"""
PHONE, SCREEN = (390, 844), (1000, 900)


def pictured(browser, name):
    if folder := os.environ.get("COREG_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        taken = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
        taken.quantize(48).save(Path(folder) / f"{name}.png", optimize=True)  # a third of the size


def test_pages_move_by_themselves_name_who_is_awaited_and_fit_a_phone(tmp_path):
    needed("chromium", "chromedriver")
    port = free_port()
    with federation(tmp_path) as fed, opened(tmp_path / "profile") as browser:
        here = f"http://127.0.0.1:{port}"
        fed.study("monthly")
        fed.study("long", **ENDLESS)
        early = fed.submit("monthly")
        fed.serve("--web", f"127.0.0.1:{port}")
        browser.go(here)
        assert browser.driver.title == "test"
        browser.until_says(early)
        # Nobody touches the page from here on: sites connect, and a run begins and ends on it.
        browser.script("window.untouched = true")
        agents = fed.all_stay()
        browser.until(
            "[...document.querySelectorAll('main td.good')].filter(c => c.innerText.startsWith('connected')).length == 3"
        )
        browser.until_says("converged")
        assert browser.script("window.untouched && document.getElementById('live').innerText") == "live"

        live = fed.submit("long")
        link = f"document.querySelector('a[href=\"/run/{live}\"]')"
        browser.until(f"{link} && ({link}.click() || true)")  # at once: the page is put in place anew meanwhile
        browser.until(f"{POINTS} > 3")
        browser.script("window.untouched = true")
        before = browser.script(POINTS)
        browser.until(f"{POINTS} > {before + 5}")
        assert browser.script("window.untouched"), "the same page: it was put in place by itself"
        assert "under way" in browser.text()

        agents["west"].kill()
        browser.until("(document.getElementById('awaited') || {innerText: ''}).innerText == 'waiting for west'")
        pictured(browser, "run")
        browser.go(f"{here}/")
        browser.until_says(f"run {live} waits for west")
        browser.until_says("away since")  # it is written down a moment after
        pictured(browser, "federation")
        browser.script("[...document.querySelectorAll('input[name=run]')].forEach(box => box.click())")
        browser.script("document.querySelector('form button').click()")
        browser.until_says("Side by side")
        assert "long" in browser.text()
        assert "objective coupling" in browser.text()

        browser.wide(*PHONE)
        for path in ("/", f"/run/{early}", f"/run/{live}", f"/compare?run={early}&run={live}", "/run/nothing"):
            browser.go(here + path)
            assert browser.script(OVERFLOW) <= 0, f"{path}: wider than a phone"
            assert browser.script(SMALLEST) >= 10, f"{path}: too small to read on a phone"
            if path == f"/run/{live}":
                pictured(browser, "phone")
        browser.wide(*SCREEN)
        told = [line for line in browser.complaints() if "/run/nothing" not in line]  # a 404, as it should be
        assert told == []
