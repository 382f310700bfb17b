"""What is seen of a page in a browser, and done with it; and what must not be seen: cut, overlapping or pale text."""

from __future__ import annotations

from typing import Any

from selenium.webdriver import ActionChains, Chrome

from .conftest import until

CONTRAST = """
(() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
    .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = channels(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0.5) return found;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, select, [disabled]")) continue;
    const [one, other] = [light(channels(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio >= 4.5) continue;
    poor.push(`${element.className || element.tagName} '${element.textContent.slice(0, 30)}' ${ratio.toFixed(2)}`);
  }
  return poor;
})()
"""
"""Texts whose contrast against what is behind them is below 4.5, which WCAG asks for."""

CUT = """
[...document.querySelectorAll("header, section, .card, .first, .bar .seg, td, th, svg text")]
  .filter((one) => one.checkVisibility() && !one.closest(".hidden, table.rows thead"))
  .filter((one) => {
    if (one.closest("svg")) {
      const [own, whole] = [one, one.closest("svg")].map((it) => it.getBoundingClientRect());
      return own.left < whole.left - 1 || own.right > whole.right + 1 || own.bottom > whole.bottom + 1;
    }
    return one.scrollWidth > one.clientWidth + 1;
  })
  .map((one) => `${one.getAttribute("class") || one.tagName} '${one.textContent.slice(0, 40)}'`)
"""
"""Texts of which a part is cut off or hangs over."""

OVERLAP = """
(() => {
  const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const within = node.parentElement;
    if (!node.textContent.trim() || within.closest(".hidden, .skip, select, noscript, dialog")) continue;
    if (!within.checkVisibility()) continue;
    if (within.closest("thead")?.getBoundingClientRect().width < 2) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width > 1 && box.height > 1) texts.push([node, box]);
  }
  const found = [];
  texts.forEach(([node, one], at) => {
    for (const [other, box] of texts.slice(at + 1)) {
      if (node === other) continue;
      const wide = Math.min(one.right, box.right) - Math.max(one.left, box.left);
      const high = Math.min(one.bottom, box.bottom) - Math.max(one.top, box.top);
      if (wide > 2 && high > 5) found.push(`'${node.textContent.slice(0, 30)}', '${other.textContent.slice(0, 30)}'`);
    }
  });
  return found;
})()
"""
"""Pairs of texts that lie on each other."""

SWATCH_ALONE = """
[...document.querySelectorAll(".named")]
  .filter((one) => one.checkVisibility())
  .filter((one) => one.lastChild.getBoundingClientRect().top > one.firstChild.getBoundingClientRect().bottom)
  .map((one) => one.textContent)
"""
"""Components whose colour does not stand beside the first line of their name."""


class Page:
    """What is seen of it."""

    def __init__(self, chrome: Chrome) -> None:
        self.chrome = chrome

    def __call__(self, script: str) -> Any:
        return self.chrome.execute_script(f"return {script.strip()}")

    def text(self, selector: str = "body") -> str:
        return str(self(f"document.querySelector({selector!r})?.innerText || ''"))

    def open(self, url: str, until_there: str = "#waiting-rows tbody tr") -> None:
        self.chrome.get(url)
        until(lambda: self.text(until_there), f"the page has {until_there}", 60)

    def until_it_says(self, what: str, selector: str = "body") -> None:
        until(lambda: what in self.text(selector), f"{selector} says {what!r}", 60)

    def until_it_does_not_say(self, what: str, selector: str = "body") -> None:
        until(lambda: what not in self.text(selector), f"{selector} no longer says {what!r}")

    def click(self, selector: str) -> None:
        self(f"document.querySelector({selector!r}).click()")

    def fill(self, selector: str, text: str) -> None:
        field = self.chrome.find_element("css selector", selector)
        field.clear()
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        ActionChains(self.chrome).send_keys(*keys).perform()

    @property
    def focused(self) -> str:
        """Where the keyboard is: an id, an address or a text."""
        return str(
            self("(e => e.id || (e.getAttribute && e.getAttribute('href')) || e.innerText)(document.activeElement)")
        )

    @property
    def flaws(self) -> list[str]:
        """What cannot be read well."""
        found = []
        for name, script in (("cut", CUT), ("overlap", OVERLAP), ("pale", CONTRAST), ("swatch alone", SWATCH_ALONE)):
            found += [f"{name}: {one}" for one in self(script)]
        if self("document.documentElement.scrollWidth > innerWidth"):
            found.append("the page is wider than the window")
        return found
