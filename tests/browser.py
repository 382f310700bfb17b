"""Headless Chromium, driven by Selenium: what a person would see of a page, and do with it."""

from __future__ import annotations

import base64
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

WIDE, PHONE = (1280, 900), (390, 844)
"""The sizes at which the pages are looked at, in CSS pixels."""

_MISSING = (
    "there is no headless Chromium on this machine: install Debian's `chromium` and `chromium-driver` "
    "(`apt-get install --no-install-recommends chromium chromium-driver`)"
)


@contextlib.contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """A browser with a profile of its own. Raises RuntimeError, with what to install, if there is none."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise RuntimeError(_MISSING)
    with tempfile.TemporaryDirectory(prefix="rpb", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for one in (
            "--headless=new",
            "--no-sandbox",  # root in a container has no other way
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--disable-gpu",
            "--disable-extensions",
            "--disable-background-networking",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(one)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        chrome = webdriver.Chrome(options=options, service=Service(driver))
        try:
            chrome.set_page_load_timeout(60)
            chrome.set_script_timeout(60)
            yield chrome
        finally:
            chrome.quit()


def look(chrome: webdriver.Chrome, size: tuple[int, int] = WIDE, dark: bool = False) -> None:
    """From now on the page has that size and that scheme of colours."""
    width, height = size
    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def picture(chrome: webdriver.Chrome, file: Path) -> None:
    """A PNG of what is in view."""
    taken: dict[str, Any] = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(base64.b64decode(taken["data"]))


def complaints(chrome: webdriver.Chrome) -> list[str]:
    """What the browser complained of since it was last asked: errors, and what the policy of contents forbids."""
    return [one["message"] for one in chrome.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]
