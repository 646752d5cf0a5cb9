// The pages are whole without this: it fetches the page again when the store was written, and puts the new main part in place.
"use strict";
const live = document.getElementById("live");
let busy = false, again = false;

async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { "Accept": "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("main");
    const old = document.getElementById("main");
    const chosen = [...old.querySelectorAll("input:checked")].map((box) => box.value);
    if (fresh) {
      old.replaceWith(document.adoptNode(fresh));
      for (const box of fresh.querySelectorAll("input")) box.checked = chosen.includes(box.value);
    }
  } catch (error) {
    live.textContent = "not connected";
  }
  busy = false;
  if (again) { again = false; setTimeout(refresh, 500); }
}

const source = new EventSource("/events");
source.onmessage = refresh;
source.onopen = () => { live.textContent = "live"; };
source.onerror = () => { live.textContent = "not connected"; };
