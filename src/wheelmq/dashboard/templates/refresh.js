// Replaces the parts of the page that changed, every five seconds. The page is complete without it.
"use strict";
(() => {
  const EVERY_MS = 5000;
  const stale = document.getElementById("stale");
  const pause = document.getElementById("pause");
  let isPaused = false;

  pause.hidden = false;
  document.getElementById("without-script").hidden = true;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
  });

  function show(found) {
    document.title = found.title;
    const focused = document.activeElement ? document.activeElement.id : "";
    for (const old of document.querySelectorAll("[data-live]")) {
      const fresh = found.getElementById(old.id);
      if (!fresh) continue;
      for (const open of old.querySelectorAll("details[open]")) {
        const same = found.getElementById(open.id);
        if (same) same.open = true;
      }
      if (!fresh.isEqualNode(old)) old.replaceChildren(...fresh.childNodes);
    }
    const again = focused ? document.getElementById(focused) : null;
    if (again && again !== document.activeElement) again.focus({ preventScroll: true });
  }

  async function refresh() {
    const isReading = String(document.getSelection() || "") !== "";
    if (!isPaused && !isReading && !document.hidden) {
      try {
        const answer = await fetch("/", { cache: "no-store" });
        if (answer.redirected) { location.reload(); return; }
        if (!answer.ok) throw new Error("it answers " + answer.status);
        show(new DOMParser().parseFromString(await answer.text(), "text/html"));
        stale.hidden = true;
      } catch (error) {
        const text = "These figures are old: the dashboard does not answer (" + error.message + "). Is wheelmq up running?";
        if (stale.hidden || stale.textContent !== text) stale.textContent = text;
        stale.hidden = false;
      }
    }
    setTimeout(refresh, EVERY_MS);
  }
  setTimeout(refresh, EVERY_MS);
})();
