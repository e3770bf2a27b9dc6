"use strict";
// Images are in the page once, in the strip; the stage borrows their addresses. Texts go in as text, never as markup.
for (const box of document.querySelectorAll("[data-compare]")) {
  const stage = box.querySelector(".stage");
  const [after, before] = stage.querySelectorAll("img");
  const range = stage.querySelector("input");
  const chosen = stage.querySelector(".chosen");
  const source = box.querySelector(".strip .full img");
  const move = () => {
    stage.style.setProperty("--cut", `${range.value}%`);
    range.setAttribute("aria-valuetext", `${range.value} % in full, the rest ${chosen.textContent}`);
  };
  const pick = (radio) => {
    const image = radio.parentElement.querySelector("img");
    after.src = image.src;
    after.alt = image.alt;
    chosen.textContent = radio.dataset.title;
  };
  before.src = source.src;
  before.alt = source.alt;
  for (const radio of box.querySelectorAll("input[type=radio]")) {
    radio.addEventListener("change", () => pick(radio));
    if (radio.checked) pick(radio);
  }
  range.addEventListener("input", move);
  move();
  stage.hidden = false;
}
