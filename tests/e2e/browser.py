"""A headless Chromium for tests, and what else a machine may lack: Debian's, by their paths;
nothing is looked up elsewhere.
"""

import shutil
from contextlib import contextmanager

from expected import lacking
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

PACKAGES = {
    "chromedriver": "chromium-driver",
    "promtool": "prometheus",
}  # where they are not named like the program


def needed(*programs):
    """Their paths; the test is skipped where one is missing, and fails where CI put them there
    (COREG_EXPECTED).
    """
    found = {program: shutil.which(program) for program in programs}
    if missing := [program for program, path in found.items() if path is None]:
        packages = dict.fromkeys(PACKAGES.get(program, program) for program in missing)
        told = (
            f"{', '.join(missing)}: not on this machine (Debian: apt-get install"
            f" {' '.join(packages)})"
        )
        lacking(*missing, told=told)
    return [str(path) for path in found.values()]


class Browser:
    """A window; see `opened`."""

    def __init__(self, driver):
        self.driver = driver

    def go(self, address):
        self.driver.get(address)
        return self

    def script(self, text):
        return self.driver.execute_script(f"return {text}")

    def text(self):
        return self.script("document.body.innerText")

    def until(self, script, seconds=600):
        """Wait until an expression of JavaScript is true; what it is then."""
        return WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(
            lambda _: self.script(script), f"{script}\n{self.text()}"
        )

    def until_says(self, words, seconds=600):
        self.until(f"document.getElementById('main').innerText.includes({words!r})", seconds)

    def wide(self, width, height):
        """As a screen of that size shows it; below 500 pixels, a phone's."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )

    def complaints(self):
        """What the browser wrote to its console: errors of scripts, what the policy held back, what
        did not load.
        """
        return [f"{line['level']}: {line['message']}" for line in self.driver.get_log("browser")]


@contextmanager
def opened(folder):
    """A window with a profile of its own, from which nothing but this machine can be reached."""
    chromium, driver = needed("chromium", "chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",  # containers run as root
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--window-size=1000,900",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={folder}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    try:
        made.set_page_load_timeout(600)
        yield Browser(made)
    finally:
        made.quit()
