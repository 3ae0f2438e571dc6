"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  document.body.classList.add("live");

  // Tooltips at once, by pointer and by keyboard; without the script the browser shows the titles.
  const tip = document.getElementById("tip");
  for (const mark of all(".mark")) mark.querySelector("title").remove();
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

  for (const field of all("[data-filter]")) {
    const rows = all("tbody tr", field.closest(".table"));
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
  }

  for (const choice of all("[data-choice]")) {
    choice.addEventListener("change", (event) => {
      for (const line of all("[data-series]", choice.closest("section"))) {
        if (line.dataset.series === event.target.value) line.toggleAttribute("hidden", !event.target.checked);
      }
    });
  }

  for (const player of all("[data-frames]")) {
    const frames = all("[data-frame]", player);
    const slider = player.querySelector("input");
    const button = player.querySelector("button");
    const output = player.querySelector("output");
    let timer = 0;
    const go = (position) => {
      slider.value = position;
      frames.forEach((frame, k) => { frame.hidden = k !== position; });
      output.textContent = frames[position].dataset.frame;
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

  let closed = [];
  addEventListener("beforeprint", () => { closed = all("details:not([open])"); closed.forEach((d) => { d.open = true; }); });
  addEventListener("afterprint", () => { closed.forEach((d) => { d.open = false; }); });
})();
