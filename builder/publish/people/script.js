"use strict";
const said = document.getElementById("said");
const field = document.getElementById("filter");
const items = [...document.querySelectorAll("[data-text]")];
const folded = text => text.toLowerCase().replace(/[-_.]+/g, "-");

function filter() {
  const words = folded(field.value).split(/\s+/).filter(Boolean);
  for (const item of items) {
    const text = folded(item.dataset.text);
    item.hidden = !words.every(word => text.includes(word));
  }
  for (const more of document.querySelectorAll("details:has([data-text])")) more.open = words.length > 0;
  const shown = items.filter(item => !item.hidden).length;
  document.getElementById("count").textContent = words.length ? `${shown} of ${items.length} shown` : "";
}

async function copy(button, code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
    said.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; said.textContent = ""; }, 2000);
  } catch {  // a page without HTTPS may not use the clipboard
    getSelection().selectAllChildren(code);
    said.textContent = "Selected; press Ctrl+C to copy";
  }
}

if (field) {
  field.closest(".search").hidden = false;
  field.addEventListener("input", filter);
}
for (const place of document.querySelectorAll("[data-path]")) {
  const address = new URL(`../../${place.dataset.path}`, location.href).href.replaceAll("'", "%27");
  const plain = "quoted" in place.dataset || /^[\w@%+=:,./~-]+$/.test(address);
  place.textContent = plain ? address : `'${address}'`;
  const code = place.closest("code");
  const button = code.closest(".command").querySelector("button");
  button.hidden = false;
  button.addEventListener("click", () => copy(button, code));
}
