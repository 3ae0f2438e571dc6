"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  document.body.classList.add("live");

  // Tooltips at once, by pointer and by keyboard; without the script the browser shows the titles.
  const tip = document.getElementById("tip");
  const show = (event) => {
    const mark = event.target.closest && event.target.closest(".mark");
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.getAttribute("aria-label");
    const box = mark.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8)) + "px";
    const below = box.bottom + 8;
    tip.style.top = (below + tip.offsetHeight < innerHeight ? below : Math.max(8, box.top - tip.offsetHeight - 8)) + "px";
  };
  for (const name of ["pointerover", "focusin"]) document.addEventListener(name, show);
  document.addEventListener("focusout", () => { tip.hidden = true; });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

  // What makes a part of the page work; again for parts that were renewed.
  const enliven = (root) => {
    for (const mark of all(".mark", root)) mark.querySelector("title").remove();

    for (const field of all("[data-filter]", root)) {
      const rows = all("tbody tr", field.closest(".table"));
      field.addEventListener("input", () => {
        const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
        for (const row of rows) {
          const text = row.textContent.toLowerCase();
          row.hidden = !words.every((word) => text.includes(word));
        }
      });
    }

    for (const choice of all("[data-choice]", root)) {
      choice.addEventListener("change", (event) => {
        for (const line of all("[data-series]", choice.closest("section"))) {
          if (line.dataset.series === event.target.value) line.toggleAttribute("hidden", !event.target.checked);
        }
      });
    }

    for (const player of all("[data-frames]", root)) {
      const frames = all("[data-frame]", player);
      const slider = player.querySelector("input");
      const button = player.querySelector("button");
      const output = player.querySelector("output");
      // Where the charts above have the frame that is shown.
      const cursors = all(".cursor", player.closest("section")).map((band) => [band, Number(band.getAttribute("x"))]);
      let timer = 0;
      const go = (position) => {
        slider.value = position;
        frames.forEach((frame, k) => { frame.hidden = k !== position; });
        output.textContent = frames[position].dataset.frame;
        for (const [band, start] of cursors) band.setAttribute("x", start + position * band.getAttribute("width"));
      };
      const stop = () => { clearInterval(timer); timer = 0; button.textContent = "Play"; };
      slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
      button.addEventListener("click", () => {
        if (timer) { stop(); return; }
        button.textContent = "Stop";
        if (Number(slider.value) === frames.length - 1) go(0);
        timer = setInterval(() => {
          const next = Number(slider.value) + 1;
          if (next >= frames.length) stop(); else go(next);
        }, 900);
      });
      go(0);
    }
  };
  enliven(document);

  // A page with events: parts are renewed in place; what the reader opened, typed or holds the focus on stays.
  const renew = (part, html) => {
    const states = all("details", part).map((item) => item.open);
    const words = all("input", part).map((item) => item.value);
    const spots = () => all("a, button, input, summary, [tabindex]", part);
    const spot = spots().indexOf(document.activeElement);
    part.innerHTML = html;
    enliven(part);
    all("details", part).forEach((item, k) => { item.open = states[k] ?? item.open; });
    all("input", part).forEach((item, k) => {
      if (!words[k]) return;
      item.value = words[k];
      item.dispatchEvent(new Event("input"));
    });
    if (spot >= 0) spots()[spot]?.focus({ preventScroll: true });
  };
  const address = document.body.dataset.events;
  if (address) {
    const state = document.querySelector("[data-state]");
    const pause = document.querySelector("[data-pause]");
    const say = (words) => { if (state.textContent !== words) state.textContent = words; };
    let source = null;
    const listen = () => {
      source = new EventSource(address);
      source.onmessage = (event) => {
        say("Live");
        for (const [key, html] of Object.entries(JSON.parse(event.data))) {
          const part = document.getElementById(key);
          if (part) renew(part, html);
        }
      };
      source.onerror = () => say("Connection lost; trying again");
    };
    pause.addEventListener("click", () => {
      pause.textContent = source ? "Go on" : "Pause";
      if (source) { source.close(); source = null; say("Paused"); } else listen();
    });
    listen();
  }

  let closed = [];
  addEventListener("beforeprint", () => { closed = all("details:not([open])"); closed.forEach((d) => { d.open = true; }); });
  addEventListener("afterprint", () => { closed.forEach((d) => { d.open = false; }); });
})();
