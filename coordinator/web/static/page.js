// Draws the JSON of `coreg-coordinator status --json`. Words of the store become text nodes only, never markup.
"use strict";
const KINDS = { // of badges; every other word is "bad"
  good: ["ready", "connected", "converged", "rehearsed"], info: ["running", "queued"], ask: ["approval pending"],
  warn: ["waiting", "starting", "draining", "warning", "not listed", "max rounds", "stagnated", "nothing shared"],
  idle: ["not running", "never served", "stopped", "never connected", "interrupted", "cancelled"],
};
const SVG = ["svg", "line", "polyline", "circle", "text"];
const byId = (id) => document.getElementById(id);
const when = (time) => (time || "–").slice(0, 19).replace("T", " ");
const power = (value) => value === null || value < 0 ? "–" : value.toExponential(0);
const worst = (values) => values.reduce((most, value) => Math.max(most, value), -1);
const size = (bytes) => bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
const span = (seconds) => seconds < 120 ? `${Number(seconds.toPrecision(2))} s` : `${Math.round(seconds / 60)} min`;
const shown = {}, open = new Set();
let state = null;

function make(tag, attributes, ...children) {
  const space = SVG.includes(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat(2).filter((child) => child !== ""));
  return element;
}
const kind = (word) => Object.keys(KINDS).find((each) => KINDS[each].includes(word)) || "bad";
const badge = (word) => make("span", { class: `badge ${kind(word)}` }, word);
const link = (run, text) => make("a", { href: `#run-${encodeURIComponent(run)}` }, text || run);
const card = (...content) => make("li", { class: "card" }, ...content);
const note = (n) => make("li", {}, make("time", {}, when(n.at)), " ", n.level === "warning" ? badge("warning") : "", " ",
  n.run && !n.text.includes(n.run) ? link(n.run) : "", " ", n.text);
const facts = (pairs) => make("dl", {}, Object.entries(pairs).map(([term, value]) =>
  make("div", {}, make("dt", {}, term), make("dd", {}, value))));
const table = (heads, rows) => make("table", {}, make("tr", {}, heads.map((head) => make("th", { scope: "col" }, head))),
  rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, String(cell))))));

function fold(title, ...content) { // it stays open when the page is drawn again
  const details = make("details", open.has(title) ? { open: "" } : {}, make("summary", {}, title), ...content);
  details.addEventListener("toggle", () => details.open ? open.add(title) : open.delete(title));
  return details;
}

function put(id, part, draw) { // draws what has changed, and keeps the focus
  const text = JSON.stringify(part), box = byId(id), key = (element) => element.getAttribute("href") || element.textContent;
  if (shown[id] === text) return;
  shown[id] = text;
  const focused = box.contains(document.activeElement) && key(document.activeElement);
  box.replaceChildren(...[draw()].flat());
  if (focused) [...box.querySelectorAll("a, summary")].find((each) => key(each) === focused)?.focus({ preventScroll: true });
}

function site(s) {
  const end = s.days_left < 0 ? "expired" : `${s.days_left} days left`, soon = s.days_left !== null && s.days_left < 30;
  return card(make("h3", {}, s.site, " ", badge(s.connected ? "connected" : s.since ? "away" : "never connected"), " ",
    s.listed ? "" : badge("not listed")),
  s.awaited.map((run) => make("p", {}, "awaited by ", link(run))),
  s.refusal && s.refused >= (s.since || "") ? make("p", {}, badge("rejected"), ` ${when(s.refused)}: ${s.refusal}`) : "",
  facts({ [s.connected ? "Since" : "Last seen"]: when(s.connected ? s.since : s.seen), Release: s.release || "–",
    Certificate: s.until ? make("span", soon ? { class: "warn" } : {}, `${s.until.slice(0, 10)}, ${end}`) : "–" }));
}

// Residual or gap by round, one line for each coupling, on a logarithmic axis. Dots are certified.
function chart(run, what) {
  const names = run.plan.objective.coupling?.map((value) => `λ = ${value}`) || [what];
  const points = (i) => run.convergence.filter((r) => r[what][i] > 0).map((r) => [r.round, Math.log10(r[what][i]), r.verified]);
  const lines = names.map((_, i) => points(i));
  const rounds = lines.flat().map(([x]) => x), logs = lines.flat().map(([, y]) => y);
  const [first, last, low] = [Math.min(...rounds), Math.max(...rounds), Math.floor(Math.min(...logs))];
  const high = Math.max(low + 1, Math.ceil(Math.max(...logs))), ticks = [];
  if (!(first < last)) return "";
  for (let log = low; log <= high; log += Math.ceil((high - low) / 6)) ticks.push(log);
  const at = (x) => 46 + 300 * (x - first) / (last - first), up = (log) => 12 + 150 * (high - log) / (high - low);
  const said = lines.map((line, i) => line.length ? `${names[i]}: ${power(10 ** line.at(-1)[1])}` : `${names[i]}: none`);
  const words = (x, y, text, anchor) => make("text", { x, y, class: anchor }, String(text));
  const label = `${what}, rounds ${first} to ${last}. Last values: ${said.join(", ")}`;
  return make("figure", {}, make("figcaption", {}, `${what} by round`),
    make("svg", { viewBox: "0 0 360 200", role: "img", "aria-label": label },
      ticks.map((log) => make("line", { x1: 46, x2: 346, y1: up(log), y2: up(log) })),
      ticks.map((log) => words(42, up(log) + 4, `1e${log}`, "end")),
      words(46, 180, first, "mid"), words(196, 196, "round", "mid"), words(346, 180, last, "mid"),
      lines.map((line, i) => make("polyline", { class: `hue-${i % 4}`, points: line.map(([x, y]) => [at(x), up(y)]).join(" ") })),
      lines.map((line, i) => line.filter(([, , verified]) => verified).map(([x, y]) =>
        make("circle", { class: `hue-${i % 4}`, cx: at(x), cy: up(y), r: 2 })))),
    make("ul", { class: "legend" }, said.map((text, i) => make("li", { class: `hue-${i % 4}` }, text))));
}

function detail(run) {
  const { phases = [], convergence = [] } = run, own = state.notices.filter((n) => n.run === run.run);
  const spent = (p) => [p.phase || "training", p.steps, span(p.seconds / p.steps), span(p.longest), size(p.bytes)];
  const cells = (r) => [r.round, r.phase || "training", r.answered, power(worst(r.residual)),
    (r.verified ? "" : "~") + power(worst(r.gap)), span(r.seconds)];
  return make("section", { id: `run-${run.run}`, class: "card", "aria-label": `Run ${run.run}` },
    make("h3", {}, `${run.study} ${run.run} `, badge(run.state)), make("p", {}, run.text),
    facts({ Phase: phases.length ? phases.at(-1).phase || "training" : "–", Began: when(run.started), Ended: when(run.ended),
      Rounds: run.rounds, Residual: power(run.residual), Gap: power(run.gap), Sites: run.plan.membership.sites.join(", ") }),
    make("div", { class: "charts" }, chart({ ...run, convergence }, "residual"), chart({ ...run, convergence }, "gap")),
    make("h4", {}, "Answer times"), table(["phase", "steps", "mean", "longest", "traffic"], phases.map(spent)),
    fold("Convergence", table(["round", "phase", "sites", "residual", "gap", "time"], convergence.map(cells)),
      make("p", { class: "muted" }, "Of several couplings, the worst. ~ marks an estimate; other figures are certified.")),
    fold("Notices of this run", make("ul", { class: "lines" }, own.map(note))),
    fold("What the answers disclose", facts(run.discloses)), fold("Plan", make("pre", {}, JSON.stringify(run.plan, null, 2))));
}

function draw() {
  const s = state, name = location.hash.startsWith("#run-") ? decodeURIComponent(location.hash.slice(5)) : s.latest[0]?.run;
  const run = s.latest.find((each) => each.run === name);
  const warnings = s.not_reloaded ? [...s.certificates, `not reloaded: ${s.not_reloaded}`] : s.certificates;
  byId("name").textContent = document.title = s.federation || "coreg";
  put("federation", [s.state, s.listen, s.since, s.connected, s.of, s.certificates, s.not_reloaded], () => [badge(s.state),
    make("p", {}, s.since ? `${s.connected.length} of ${s.of.length} sites connected; on ${s.listen} since ${when(s.since)}`
      : "To continue: coreg-coordinator serve FEDERATION.toml"),
    ...warnings.map((text) => make("p", {}, badge("warning"), " ", text))]);
  put("sites", s.sites, () => s.sites.map(site));
  put("studies", s.studies, () => s.studies.map((each) => card(make("h3", {}, each.study),
    make("p", {}, `Runs: ${each.runs}. Converged: ${each.converged}. Open: ${each.open}. Latest: `, link(each.latest)))));
  put("runs", s.latest, () => s.latest.length ? s.latest.map((each) => card(
    make("h3", {}, link(each.run, `${each.study} ${each.run}`), " ", badge(each.state)), make("p", {}, each.text),
    make("p", { class: "muted" }, `${when(each.started)}, ${each.rounds} rounds, gap ${power(each.gap)}`)))
    : card("No run. Submit a study: coreg-coordinator submit STUDY.toml"));
  put("run", [run, name, s.notices], () => run ? detail(run) : name ? `coreg-coordinator show ${name}` : []);
  put("notices", s.notices, () => s.notices.map(note));
}

function show() {
  draw();
  if (location.hash.startsWith("#run-")) byId("run").scrollIntoView();
}
const live = (text) => { byId("live").textContent = text; };
const source = new EventSource("/events");
source.onmessage = (event) => {
  const turn = state ? draw : show;
  state = JSON.parse(event.data);
  live("live");
  turn();
};
source.addEventListener("fault", (event) => live(JSON.parse(event.data)));
source.onerror = () => live("no connection");
addEventListener("hashchange", () => state && show());
