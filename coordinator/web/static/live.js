// The pages are complete without this script. It keeps them up to date, and makes the charts readable by pointer and keyboard.
"use strict";
const live = document.getElementById("live");
const parts = (page) => [...page.querySelectorAll("main > section[id]")];
let known = new Map(parts(document).map((part) => [part.id, part.innerHTML])), busy = false, again = false;

// When the store was written: fetch the page again, and replace the sections that differ.
async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { "Accept": "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const changed = parts(fresh).filter((part) => known.get(part.id) !== part.innerHTML);
    const same = parts(fresh).map((part) => part.id).join() === [...known.keys()].join();
    known = new Map(parts(fresh).map((part) => [part.id, part.innerHTML]));
    if (same) for (const part of changed) replace(document.getElementById(part.id), part);
    else replace(document.getElementById("main"), fresh.getElementById("main"));
  } catch (error) {
    shown(false);
  }
  busy = false;
  if (again) { again = false; setTimeout(refresh, 500); }
}

// What the reader has chosen, opened or focused stays.
function replace(old, fresh) {
  const chosen = [...old.querySelectorAll("input:checked")].map((box) => box.value);
  const open = [...old.querySelectorAll("details")].map((details) => details.open);
  const focused = old.contains(document.activeElement) ? index(old, document.activeElement) : -1;
  old.replaceWith(document.adoptNode(fresh));
  for (const box of fresh.querySelectorAll("input[type=checkbox]")) box.checked = chosen.includes(box.value);
  fresh.querySelectorAll("details").forEach((details, i) => { details.open = open[i] || false; });
  if (focused >= 0) fresh.querySelectorAll("*")[focused]?.focus({ preventScroll: true });
}
const index = (part, element) => [...part.querySelectorAll("*")].indexOf(element);

function shown(connected) {
  live.textContent = connected ? "page refreshes" : "page does not refresh";
  live.classList.toggle("on", connected);
}
const source = new EventSource("/events");
source.onmessage = refresh;
source.onopen = () => shown(true);
source.onerror = () => shown(false);

// Charts: the legend shows the values at the pointer, or at the position of the arrow keys.
function read(stop, aloud) {
  const chart = stop.closest(".chart"), values = stop.dataset.values.split("|");
  const cross = chart.querySelector(".cross");
  for (const end of ["x1", "x2"]) cross.setAttribute(end, stop.dataset.x);
  const [label, ...lines] = stop.textContent.split("\n");
  chart.querySelector(".at").textContent = label;
  chart.querySelectorAll(".legend b").forEach((value, i) => { value.textContent = values[i]; });
  chart.dataset.at = [...chart.querySelectorAll(".stop")].indexOf(stop);
  if (aloud) chart.querySelector(".say").textContent = [label, ...lines].join(", ");
}
document.addEventListener("pointermove", (event) => { if (event.target.matches?.(".stop")) read(event.target, false); });
document.addEventListener("pointerdown", (event) => { if (event.target.matches?.(".stop")) read(event.target, false); });
document.addEventListener("keydown", (event) => {
  const chart = event.target.closest?.("svg[tabindex]")?.closest(".chart");
  if (!chart) return;
  const stops = chart.querySelectorAll(".stop"), last = stops.length - 1, at = Number(chart.dataset.at ?? last);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  read(stops[Math.max(0, Math.min(last, to))], true);
});
document.addEventListener("change", (event) => { if (event.target.matches(".filters select")) event.target.form.submit(); });
