"""The pages in Chromium: they update by themselves, fit a phone and a screen, and can be used with keyboard and screen reader.

If COREG_SCREENSHOTS names a folder (`make pages`), the test puts the pictures of the operator's guide there.
"""

import io
import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from browser import needed, opened
from federation import ENDLESS, federation
from machine.tiny import Pump, make_plan, make_site
from PIL import Image
from selenium.webdriver.common.keys import Keys
from test_serve import free_port

from coordinator.driver import Timing
from coordinator.machine import notices as n
from coordinator.machine.records import Closed, Ended, StepDone
from coordinator.store.history import History
from coordinator.store.runs import RunStore
from coordinator.store.status import Status
from coordinator.web.pages import show
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Additive
from coreg_wire.files.locks import exclusive

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


def checked(browser, address, *, only_phone=False):
    """The page at both widths, light and dark: nothing is cut off, small, faint or without a name."""
    browser.go(address)
    for width, height in (PHONE,) if only_phone else (PHONE, SCREEN):
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
        browser.until("document.querySelectorAll('#sites .spark').length == 3")
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
            checked(browser, here + path, only_phone=True)
            if path == f"/run/{live}":
                pictured(browser, "phone")
        told = [line for line in browser.complaints() if "/run/nothing" not in line]  # a 404, as it should be
        assert told == []


SITES, NOW = ("east", "north", "west"), "2026-11-22T17:{:02}:00.000+00:00"


def stored(path):
    """A path of four couplings under way, one that has ended, an additive run, an approval that is pending, a refusal."""
    store, history, status = RunStore(path), History(path), Status(path)
    for minute, name in enumerate(("active", "ended", "additive", "asking", "refused")):
        plan = make_plan(run=name, sites=SITES, min_sites=3, coupling=(0.01, 0.1, 1.0, 10.0))
        plan = replace(plan, study="monthly", objective=Additive() if name == "additive" else plan.objective)
        store.begin(plan, NOW.format(minute))
        if name == "refused":
            for record in (Ended(Outcome.REFUSED, "north: the policy allows no coupling above 0.5."), Closed()):
                store.write(name, record, Timing(), NOW.format(minute + 1))
        if name in ("asking", "refused"):
            continue
        sites = {site: make_site(site) for site in SITES}
        for record in Pump(plan, sites).join().run().records:
            store.write(name, record, Timing(1.5, 100, 200), NOW.format(minute + 1))
            if name == "active" and isinstance(record, StepDone) and record.number == 9:
                break
    history.add(n.AccessDenied("z" * 60, "it was <revoked>"), NOW.format(9))
    history.flush()
    for site in SITES[1:]:
        status.opened(site, "0.3.0", "2099-01-01T00:00:00+00:00", NOW.format(0))
    told = {"state": "ready", "federation": "waiting-times", "sites": SITES, "runs": ["active", "asking"]}
    waits = {"awaited": {"asking": ["north"]}, "waiting": {"asking": "waiting for approval by north"}}
    status.set_service({**told, **waits}, NOW.format(9))
    for opened_table in (store, history, status):
        opened_table.close()


@contextmanager
def served(path):
    port = free_port()
    with exclusive(path, "a coordinator"):
        end = show(f"127.0.0.1:{port}", path, None)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            end()


def test_every_page_fits_both_widths_and_is_read_by_pointer_and_keyboard(tmp_path):
    needed("chromium", "chromedriver")
    stored(tmp_path / "runs.sqlite")
    with served(tmp_path / "runs.sqlite") as here, opened(tmp_path / "profile") as browser:
        runs = [f"/run/{name}" for name in ("active", "ended", "additive", "asking", "refused")]
        for path in ("/", "/runs", "/studies", "/study/monthly", "/notices", "/compare?run=active&run=ended", *runs):
            checked(browser, here + path)
        browser.wide(*SCREEN)

        # The state of the run that waits for approval is a badge of its own, at the run and at the site.
        browser.go(f"{here}/")
        badges = "[...document.querySelectorAll('.badge.approval')].map(b => b.innerText)"
        assert browser.script(badges) == ["awaited", "approval pending"]
        assert "waiting for approval by north" in browser.text()

        # Filters: a choice is applied at once, and the search in the header finds runs.
        browser.go(f"{here}/runs")
        choice = "document.querySelector('select[name=state]')"
        browser.script(f"({choice}.value = 'approval', {choice}.dispatchEvent(new Event('change', {{bubbles: true}})))")
        browser.until("[...document.querySelectorAll('tbody .run')].map(a => a.innerText).join() == 'asking'")
        browser.script("document.querySelector('header input').focus()")
        browser.driver.switch_to.active_element.send_keys("above 0.5" + Keys.ENTER)
        browser.until("[...document.querySelectorAll('tbody .run')].map(a => a.innerText).join() == 'refused'")

        # A chart: the legend shows the values below the pointer, and the arrow keys read single steps aloud.
        browser.go(f"{here}/run/ended")
        legend = (
            "[...document.querySelectorAll('#chart-1 .legend .at, #chart-1 .legend b')].map(e => e.innerText).join(' ')"
        )
        last = browser.script(legend)
        place = browser.script("document.querySelector('#chart-1 .stop').getBoundingClientRect().toJSON()")
        at = {"x": place["x"] + place["width"] / 2, "y": place["y"] + 20}
        browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **at})
        browser.until(f"{legend} != {last!r}")
        first = browser.script("document.querySelector('#chart-1 .stop').textContent.split('\\n')")
        assert browser.script(legend) == " ".join([first[0], *(line.split(": ")[1] for line in first[1:])])
        browser.script("document.querySelector('#chart-1 svg').focus()")
        browser.driver.switch_to.active_element.send_keys(Keys.END, Keys.ARROW_LEFT)
        aloud = browser.script("document.querySelector('#chart-1 .say').textContent")
        assert aloud.startswith("step 10, λ = 0.01: ")
        assert browser.script("getComputedStyle(document.querySelector('#chart-1 .cross')).display") == "inline"

        # Without the script everything is there: lines, values, titles for the pointer.
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        browser.go(f"{here}/run/active")
        source = browser.driver.page_source
        assert source.count("<polyline") == 2 * 4
        assert "λ = 0.01" in source
        assert "<title>step " in source
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        assert browser.complaints() == []
        browser.go("about:blank")
