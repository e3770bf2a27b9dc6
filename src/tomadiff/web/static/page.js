"use strict";
// Gradio's before/after slider listens to mouse and touch alone. This gives its handle a name and the arrow keys, by
// moving it with the mouse events it knows, and lets wheel and finger scroll the page over the image. Gradio's
// images have no words for those who cannot see them; these have.
(() => {
  const HANDLE = "#pair [data-testid=slider]";
  const STEPS = { ArrowLeft: -0.05, ArrowDown: -0.05, ArrowRight: 0.05, ArrowUp: 0.05, PageDown: -0.2, PageUp: 0.2, Home: -1, End: 1 };

  const NAMES = [["#pair img:first-of-type", "in full"], ["#pair img", "with tomadiff"], ["#map img", "what merged"]];

  const place = (handle) => {
    const image = handle.parentElement.querySelector("img").getBoundingClientRect();
    const edge = handle.getBoundingClientRect();
    return { image, x: edge.left + edge.width / 2, y: edge.top + edge.height / 2 };
  };

  const describe = (handle) => {
    const { image, x } = place(handle);
    const share = Math.round(100 * Math.min(1, Math.max(0, (x - image.left) / image.width)));
    handle.setAttribute("aria-valuenow", share);
    handle.setAttribute("aria-valuetext", `${share} % in full, the rest with tomadiff`);
  };

  const move = (handle, by) => {
    const { image, x, y } = place(handle);
    const goal = Math.min(image.right, Math.max(image.left, x + by * image.width));
    for (const [type, at] of [["mousedown", x], ["mousemove", goal], ["mouseup", goal]]) {
      const target = type === "mousedown" ? handle : window;
      target.dispatchEvent(new MouseEvent(type, { view: window, bubbles: true, cancelable: true, clientX: at, clientY: y }));
    }
    requestAnimationFrame(() => describe(handle));
  };

  const adopt = () => {
    for (const handle of document.querySelectorAll(`${HANDLE}:not([role=slider])`)) {
      handle.setAttribute("role", "slider");
      handle.setAttribute("tabindex", "0");
      handle.setAttribute("aria-label", "Share of the full image");
      handle.setAttribute("aria-valuemin", "0");
      handle.setAttribute("aria-valuemax", "100");
      describe(handle);
      handle.addEventListener("keydown", (event) => {
        if (!(event.key in STEPS)) return;
        event.preventDefault();
        move(handle, STEPS[event.key]);
      });
    }
    for (const [part, words] of NAMES) {
      for (const image of document.querySelectorAll(part)) if (!image.alt) image.alt = words;
    }
  };

  const scrolls = (event) => {
    const over = event.target instanceof Element && event.target.closest("#pair .slider-wrap");
    const meant = event.ctrlKey || event.touches?.length > 1 || event.target.closest?.("[data-testid=slider]");
    if (over && !meant) event.stopPropagation();
  };

  // On a phone the images lie below the button.
  const follow = (event) => {
    if (!event.target.closest?.("#generate")) return;
    const pair = document.querySelector("#pair");
    const { top } = pair.getBoundingClientRect();
    if (top > 0.7 * window.innerHeight) pair.scrollIntoView({ behavior: "smooth" });
  };

  document.addEventListener("click", follow);
  new MutationObserver(adopt).observe(document, { childList: true, subtree: true });
  for (const type of ["wheel", "touchstart"]) document.addEventListener(type, scrolls, { capture: true, passive: true });
})();
